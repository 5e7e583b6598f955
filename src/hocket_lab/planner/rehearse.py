"""Rehearsal of single stages: each runs alone, between simulated neighbours, and is measured.

They are the engines' stages, and follow their schedule of the program. So the measured
time and memory include copies of weights, heads, synthesizers, norms and updates.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean, median

import torch
from torch import Tensor, nn

from hocket.engine.build import build_signals, build_stage
from hocket.partition.costs.profile import synchronized_clock
from hocket.partition.parts.copied_modules import copy_modules
from hocket.program.action import Action, Kind, dependency
from hocket.program.program import Program, enter
from hocket.stage.layers.module_tensors import NetworkNames
from hocket.stage.layers.reversible import inverts, require_invertible
from hocket.stage.parts import StageParts
from hocket.stage.setup import Setup
from hocket.stage.stage import Stage
from hocket.timeline import Recorder
from hocket.transport.packet import Activation, Gradient
from hocket.tree import Tree, copy_tensors, tensors
from hocket_lab.planner.simulate import Jitter
from hocket_lab.planner.tensor_memory import LiveTensorMemory

# Least numbers of ticks, and of updates in them, that are timed.
REPETITIONS = 5
UPDATES = 2
# Typical time that a stage waits for a packet, at some batches per second.
IDLE_S = 0.05
# Standard deviation of simulated gradients: small, as for a mean over a batch.
GRADIENT_SCALE = 1e-4


@dataclass(frozen=True)
class StageProfile:
    """Measured time and memory of a stage.

    Attributes:
        batch_size: Inputs in a batch of the network.
        seconds: All durations of each kind of action; empty for actions that it never does.
        received_bytes: Bytes of a batch received from the previous stage.
        sent_bytes: Bytes of a batch sent to the next stage; 0 of the last one.
        weight_bytes: Parameters and buffers, also of its head or synthesizer.
        trainable_bytes: Parameters that get a gradient.
        optimizer_bytes: State of the optimizers.
        peak_bytes: Peak of all tensors of the stage, with its weights.
        inverts: True if it computes its input from its output, which comes with the gradient.
    """

    batch_size: int
    seconds: dict[Kind, tuple[float, ...]]
    received_bytes: int
    sent_bytes: int
    weight_bytes: int
    trainable_bytes: int
    optimizer_bytes: int
    peak_bytes: int
    inverts: bool = False

    def median_s(self, kind: Kind) -> float:
        """Return the median duration of an action in seconds; 0 if the stage never does it.

        The mean would be too long: ticks that allocate memory for the first time are slower,
        and rarer in a training than in a rehearsal.
        """
        return median(self.seconds[kind] or (0.0,))

    @property
    def packet_bytes(self) -> int:
        """Mean size of a packet over the edge to the next stage, there and back.

        To a stage that inverts its layers its output comes back as well.
        """
        return self.sent_bytes * 3 // 2 if self.inverts else self.sent_bytes

    @property
    def jitter(self) -> Jitter:
        """Durations of each kind of action, divided by their mean."""
        return {
            kind: tuple(duration_s / fmean(durations_s) for duration_s in durations_s)
            for kind, durations_s in self.seconds.items()
        }


def rehearse(
    setup: Setup,
    modules: Sequence[nn.Module],
    inputs: Tree,
    targets: Tree,
    *,
    with_idle: bool = False,
) -> tuple[StageProfile, ...]:
    """Measure each stage on its device, with PyTorch's current number of threads.

    Copies are trained: the modules do not change.

    Args:
        setup: Options of the training.
        modules: Layers of each stage.
        inputs: A batch of the size that the training will use, with tensors of shape (B, ...).
        targets: Its targets.
        with_idle: Sleep before each action that needs a packet, as a stage that waits does.

    Raises:
        OptionError: A stage is not compatible with the method.
    """
    # Copy the layers, and build the signals of all stages.
    method, copies = setup.method, copy_modules(modules)
    require_invertible(method, copies, NetworkNames())
    signals, networks = build_signals(setup, copies, inputs)
    activation = Activation(0, 0, inputs, (False,) * len(tensors(inputs)), targets)
    profiles = []
    inverting = [inverts(method, module, k, len(copies)) for k, module in enumerate(copies)]
    for k, module in enumerate(copies):
        # Put the stage between simulated neighbours.
        count = method.gradients_sent(k + 1, len(copies))
        next_stage = _NextStage(count, returns_output=inverting[k])
        weights = [*_parameters_and_buffers(module), *_parameters_and_buffers(networks[k])]
        parts = StageParts(
            index=k,
            count=len(copies),
            module=module,
            signal=signals[k],
            signal_network=networks[k],
            to_previous=_PreviousStage(activation),
            to_next=next_stage,
            recorder=Recorder(k, keep=False),
            previous_inverts=k > 0 and inverting[k - 1],
        )
        stage = build_stage(setup, parts)
        schedule = Program(method, len(copies), only=k)
        # Run it until its batches are in flight, then measure it.
        with LiveTensorMemory(*weights, *tensors((activation.values, targets))) as memory:
            _fill(stage, schedule)
        sent = next_stage.first_activation
        profiles.append(
            StageProfile(
                batch_size=len(tensors(inputs)[0]),
                seconds=_time_actions(stage, schedule, synchronized_clock(inputs), with_idle),
                received_bytes=_size_bytes(activation.values),
                sent_bytes=_size_bytes((sent.values, sent.network_input)),
                weight_bytes=_size_bytes(weights),
                trainable_bytes=_size_bytes([w for w in weights if w.requires_grad]),
                optimizer_bytes=_optimizer_bytes(stage),
                peak_bytes=_size_bytes(weights) + memory.peak_bytes - next_stage.kept_bytes,
                inverts=inverting[k],
            )
        )
        activation = sent
    return tuple(profiles)


class _Stateless:
    """Base of simulated neighbours, which have no state."""

    def state_dict(self) -> Tree:
        """Return None."""

    def load_state_dict(self, state: Tree) -> None:
        """Do nothing."""


class _PreviousStage(_Stateless):
    """Simulated previous stage: sends the same activation for every batch."""

    def __init__(self, activation: Activation) -> None:
        self._activation = activation

    def receive(self, batch: int) -> Activation:
        """Return a copy of the activation for this batch."""
        values = copy_tensors(self._activation.values)
        return replace(self._activation, batch=batch, values=values)

    def send(self, packet: Gradient) -> None:
        """Discard the gradient."""


class _NextStage(_Stateless):
    """Simulated next stage: sends random gradients of the first activation it received.

    Args:
        count: Number of gradients that it sends for each tensor.
        returns_output: Send that activation with them.

    Attributes:
        first_activation: Activation that was received first; an empty one behind the last
            stage, which sends none.
    """

    def __init__(self, count: int, *, returns_output: bool) -> None:
        self._count = count
        self._returns_output = returns_output
        self.first_activation = Activation(0, 0, None, (), None)
        self._gradients: tuple[Tensor | None, ...] = ()

    @property
    def kept_bytes(self) -> int:
        """Bytes kept by this simulation, which the stage itself would not hold."""
        return _size_bytes(self.first_activation.values) + _size_bytes(self._gradients)

    def send(self, packet: Activation) -> None:
        """Keep a copy of the first activation, and draw its gradients."""
        if self.first_activation.values is None:
            self.first_activation = replace(packet, batch=0, values=copy_tensors(packet.values))
            self._gradients = tuple(
                torch.randn_like(value) * GRADIENT_SCALE if flag else None
                for _ in range(self._count)
                for value, flag in zip(
                    tensors(packet.values), packet.differentiable, strict=True
                )
            )

    def receive(self, batch: int) -> Gradient:
        """Return a copy of the gradients for this batch."""
        outputs = tensors(self.first_activation.values) if self._returns_output else []
        return Gradient(batch, copy_tensors((*self._gradients, *outputs)))


def _fill(stage: Stage, schedule: Program) -> None:
    """Run a stage until its batches are in flight, and it was updated twice."""
    updates = 0
    while updates < 2:
        for action in _entering(schedule):
            stage.execute(action)
            updates += action.kind == "U"


def _time_actions(
    stage: Stage, schedule: Program, now: Callable[[], float], with_idle: bool
) -> dict[Kind, tuple[float, ...]]:
    """Return the durations of each kind of action, in seconds."""
    seconds: dict[Kind, list[float]] = {"F": [], "B": [], "U": [], "T": []}
    while len(seconds["F"]) < REPETITIONS or len(seconds["U"]) < UPDATES:
        for action in _entering(schedule):
            if with_idle and dependency(action, schedule.method, schedule.stages):
                time.sleep(IDLE_S)
            start_s = now()
            stage.execute(action)
            seconds[action.kind].append(now() - start_s)
    return {kind: tuple(durations_s) for kind, durations_s in seconds.items()}


def _entering(schedule: Program) -> Iterator[Action]:
    """Yield the actions of a stage with which its next batch enters."""
    return chain.from_iterable(enter(schedule))


def _optimizer_bytes(stage: Stage) -> int:
    """Return the bytes of the states of a stage's optimizers."""
    optimizers = (stage.updater.optimizer, stage.signal_updater.optimizer)
    return _size_bytes([list(each.state.values()) for each in optimizers if each is not None])


def _parameters_and_buffers(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _size_bytes(values: Tree) -> int:
    return sum(value.nbytes for value in tensors(values))

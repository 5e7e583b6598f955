"""Rehearsal of single stages: each runs alone, between simulated neighbours, and is measured.

They are the engines' stages, and follow their schedule of the program. So the measured
time and memory include copies of weights, heads, synthesizers, norms and updates.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean, median
from typing import Generic

import torch
from torch import nn

from hocket.codecs.codec import Codec
from hocket.codecs.stateless import Exact
from hocket.engine.build_signals import build_signals
from hocket.engine.build_stage import build_stage
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
from hocket.transport.encoded import EncodedPort
from hocket.transport.mailbox import Mailbox, MailboxPort
from hocket.transport.packet import Activation, Gradient
from hocket.transport.port import Port, Received, Sent
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
        received_bytes: Bytes of a batch received from the previous stage, decoded.
        sent_bytes: Bytes of a batch sent to the next stage, encoded; 0 of the last one.
        returned_bytes: Bytes of a gradient that the next stage returns, encoded, and of the
            output that comes with it; 0 if none comes back.
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
    returned_bytes: int
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
        """Mean size of a packet over the edge to the next stage, there and back."""
        return (self.sent_bytes + (self.returned_bytes or self.sent_bytes)) // 2

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
    received_bytes = _size_bytes(inputs)
    profiles = []
    inverting = [inverts(method, module, k, len(copies)) for k, module in enumerate(copies)]
    for k, module in enumerate(copies):
        # Put the stage between simulated neighbours.
        count = method.gradients_sent(k + 1, len(copies))
        next_stage = _NextStage(count, setup.codec, returns_output=inverting[k])
        weights = [w for m in (module, networks[k]) for w in chain(m.parameters(), m.buffers())]
        parts = StageParts(
            index=k,
            count=len(copies),
            module=module,
            signal=signals[k],
            signal_network=networks[k],
            to_previous=_Neighbour(activation),
            to_next=next_stage,
            recorder=Recorder(k, keep=False),
            previous_inverts=k > 0 and inverting[k - 1],
        )
        stage = build_stage(setup, parts)
        schedule = Program(method, len(copies), only=k)
        # Run it until its batches are in flight, then measure it.
        with LiveTensorMemory(*weights, *tensors((activation.values, targets))) as memory:
            _fill(stage, schedule)
        sent = next_stage.first_packet
        profiles.append(
            StageProfile(
                batch_size=len(tensors(inputs)[0]),
                seconds=_time_actions(stage, schedule, synchronized_clock(inputs), with_idle),
                received_bytes=received_bytes,
                sent_bytes=_size_bytes((sent.values, sent.network_input)),
                returned_bytes=next_stage.returned_bytes,
                weight_bytes=_size_bytes(weights),
                trainable_bytes=_size_bytes([w for w in weights if w.requires_grad]),
                optimizer_bytes=_optimizer_bytes(stage),
                peak_bytes=_size_bytes(weights) + memory.peak_bytes - next_stage.kept_bytes,
                inverts=inverting[k],
            )
        )
        activation, received_bytes = sent, next_stage.activation_bytes
    return tuple(profiles)


class _Neighbour(Generic[Sent, Received]):
    """Simulated neighbour: sends the same packet for every batch, and keeps none."""

    def __init__(self, packet: Received) -> None:
        self._packet: Received = packet

    def send(self, packet: Sent) -> None:
        """Discard the packet."""

    def receive(self, batch: int) -> Received:
        """Return a copy of the packet for this batch."""
        return replace(self._packet, batch=batch, values=copy_tensors(self._packet.values))

    def state_dict(self) -> Tree:
        """Return None."""

    def load_state_dict(self, state: Tree) -> None:
        """Do nothing."""


class _NextStage(_Neighbour[Activation, Gradient]):
    """Simulated next stage: sends random gradients of the first activation it received.

    Args:
        count: Number of gradients that it sends for each tensor.
        codec: Codec of the edge between the stages.
        returns_output: Send that activation with them.

    Attributes:
        first_packet: Packet that was received first, encoded; an empty one behind the last
            stage, which sends none.
        activation_bytes: Its size when it is decoded.
        returned_bytes: Size of a gradient, encoded, with the output that it returns.
    """

    def __init__(self, count: int, codec: Codec, *, returns_output: bool) -> None:
        super().__init__(Gradient(0, None))
        self._count = count
        self._codec = codec
        self._returns_output = returns_output
        self.first_packet = Activation(0, 0, None, (), None)
        self.activation_bytes = self.returned_bytes = 0

    @property
    def kept_bytes(self) -> int:
        """Bytes kept by this simulation, which the stage itself would not hold."""
        return _size_bytes(self.first_packet.values) + _size_bytes(self._packet.values)

    def send(self, packet: Activation) -> None:
        """Keep a copy of the first packet, and draw and encode its gradients."""
        if self.first_packet.values is not None:
            return
        self.first_packet = replace(packet, batch=0, values=copy_tensors(packet.values))

        # Decode it.
        received = Mailbox("rehearsed activations", Activation)
        returned = Mailbox("rehearsed gradients", Gradient)
        port: Port[Gradient, Activation] = MailboxPort(returned, received)
        if self._codec != Exact():
            port = EncodedPort(port, self._codec.gradients, self._codec, seed=0)
        received.put(self.first_packet)
        activation = port.receive(0)
        outputs = tensors(activation.values)
        self.activation_bytes = _size_bytes(outputs)

        # Answer it.
        gradients = [
            torch.randn_like(value) * GRADIENT_SCALE if flag else None
            for _ in range(self._count)
            for value, flag in zip(outputs, activation.differentiable, strict=True)
        ]
        port.send(Gradient(0, (*gradients, *(outputs if self._returns_output else ()))))
        self._packet = returned.take(0)
        self.returned_bytes = _size_bytes(self._packet.values) // max(self._count, 1)


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


def _size_bytes(values: Tree) -> int:
    return sum(value.nbytes for value in tensors(values))

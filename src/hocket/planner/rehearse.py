"""Stages at work one by one, with the parts of their neighbours played from a script.

A stage is that of the engines and does what its column of the program says. So whatever it
takes and holds is in the numbers: copies of weights, heads, synthesizers, norms, updates.
"""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import torch
from torch import Tensor, nn

from hocket.engine.setup import Setup, build_signals, build_stage
from hocket.partition.profile import synchronized_clock
from hocket.planner.simulate import Jitter
from hocket.planner.tensor_memory import LiveTensorMemory
from hocket.program import Kind, StageSchedule, dependency
from hocket.stage.stage import Stage
from hocket.timeline import Recorder
from hocket.transport.packet import Activation, Gradient
from hocket.tree import Tree, copy_tensors, tensors

# Ticks that are timed, and updates in them at least.
REPETITIONS = 5
UPDATES = 2
# About what a stage waits for where some batches are done in a second.
REST_S = 0.05
# Of gradients that come back: small, as those of a mean over a batch are.
SCALE = 1e-4


@dataclass(frozen=True)
class Rehearsed:
    """What a stage took and held.

    Attributes:
        seconds: Of each kind of action, every time; none for what it never does.
        received_bytes: Of a batch, from before.
        sent_bytes: Of a batch, to the stage behind.
        weight_bytes: Parameters and buffers, with those of its head or synthesizer.
        optimizer_bytes: What the optimizers remember.
        peak_bytes: All that it held at its fullest, with its weights.
    """

    seconds: dict[Kind, tuple[float, ...]]
    received_bytes: int
    sent_bytes: int
    weight_bytes: int
    optimizer_bytes: int
    peak_bytes: int

    def usual_s(self, kind: Kind) -> float:
        """Seconds of an action, the median; 0 of what it never does.

        Not the mean: ticks in which memory is taken for the first time are slower, and fewer
        in a training than in a rehearsal.
        """
        return median(self.seconds[kind] or (0.0,))

    @property
    def jitter(self) -> Jitter:
        """How its times vary."""
        return {
            kind: tuple(one / fmean(seen) for one in seen)
            for kind, seen in self.seconds.items()
        }


def rehearse(
    setup: Setup,
    modules: Sequence[nn.Module],
    inputs: Tree,
    targets: Tree,
    *,
    with_idle: bool = False,
) -> tuple[Rehearsed, ...]:
    """What each stage takes and holds, where it is and with the present number of threads.

    Copies are trained: the modules stay as they are.

    Args:
        setup: As for a training.
        modules: The layers of each stage.
        inputs: A batch, of the size that training will use.
        targets: Its targets.
        with_idle: Whether a stage rests before whatever takes a packet, as one that waits does.

    Raises:
        OptionError: A stage cannot honour the method.
    """
    # Together, so that what they share is still shared by their copies.
    stages = copy.deepcopy(list(modules))
    signals, networks = build_signals(setup, stages, inputs)
    given = Activation(0, 0, inputs, (False,) * len(tensors(inputs)), targets)
    found = []
    for k, module in enumerate(stages):
        earlier, later = _Earlier(given), _Later()
        own = [*_weights(module), *_weights(networks[k])]
        stage = build_stage(
            setup, k, len(stages), module, signals[k], networks[k], earlier, later,
            Recorder(k, keep=False),
        )  # fmt: skip
        column = StageSchedule(setup.method, len(stages), k)
        with LiveTensorMemory(*own, *tensors((given.values, targets))) as living:
            _until_full(stage, column)
        found.append(
            Rehearsed(
                seconds=_timed(stage, column, synchronized_clock(inputs), with_idle),
                received_bytes=_bytes(given.values),
                sent_bytes=_bytes(later.seen.values),
                weight_bytes=_bytes(own),
                optimizer_bytes=_remembered(stage),
                peak_bytes=_bytes(own) + living.peak - later.own_bytes,
            )
        )
        given = later.seen
    return tuple(found)


class _Earlier:
    """The stage before: sends the same batch again and again, and is sent gradients."""

    def __init__(self, given: Activation) -> None:
        self._given = given

    def receive(self, batch: int) -> Activation:
        """The batch, under this number."""
        values = copy_tensors(self._given.values)
        return Activation(batch, 0, values, self._given.differentiable, self._given.targets)

    def send(self, packet: Gradient) -> None:
        """Nobody needs it."""

    def state_dict(self) -> Tree:
        """Nothing is remembered."""

    def load_state_dict(self, state: Tree) -> None:
        """Nothing is remembered."""


class _Later:
    """The stage behind: sends gradients of whatever it was sent first."""

    def __init__(self) -> None:
        self._seen: Activation | None = None
        self._gradients: tuple[Tensor | None, ...] = ()

    @property
    def seen(self) -> Activation:
        """What was sent first."""
        assert self._seen is not None, "nothing was forwarded"
        return self._seen

    @property
    def own_bytes(self) -> int:
        """Of what is kept for the script."""
        return _bytes(self.seen.values) + _bytes(self._gradients)

    def send(self, packet: Activation) -> None:
        """Keeps the first one."""
        if self._seen is None:
            self._seen = Activation(
                0, 0, copy_tensors(packet.values), packet.differentiable, packet.targets
            )
            self._gradients = tuple(
                torch.randn_like(value) * SCALE if flag else None
                for value, flag in zip(
                    tensors(packet.values), packet.differentiable, strict=True
                )
            )

    def receive(self, batch: int) -> Gradient:
        """Some gradient."""
        mine = self._gradients
        return Gradient(batch, tuple(g if g is None else g.clone() for g in mine))

    def state_dict(self) -> Tree:
        """Nothing is remembered."""

    def load_state_dict(self, state: Tree) -> None:
        """Nothing is remembered."""


def _until_full(stage: Stage, column: StageSchedule) -> None:
    """Until as many batches are in flight as there will be, and two updates were made."""
    updates = 0
    while updates < 2:
        for action in column.tick():
            stage.execute(action)
            updates += action.kind == "U"


def _timed(
    stage: Stage, column: StageSchedule, now: Callable[[], float], rests: bool
) -> dict[Kind, tuple[float, ...]]:
    """Seconds of each kind of action, over some forwards and updates at least."""
    times_s: dict[Kind, list[float]] = {"F": [], "B": [], "U": [], "T": []}
    while len(times_s["F"]) < REPETITIONS or len(times_s["U"]) < UPDATES:
        for action in column.tick():
            if rests and dependency(action, column.method, column.stages):
                time.sleep(REST_S)
            start_s = now()
            stage.execute(action)
            times_s[action.kind].append(now() - start_s)
    return {kind: tuple(seen) for kind, seen in times_s.items()}


def _remembered(stage: Stage) -> int:
    """Bytes of the optimizers' states."""
    optimizers = (stage.updater.optimizer, stage.signal_updater.optimizer)
    return sum(_bytes(list(own.state.values())) for own in optimizers if own is not None)


def _weights(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _bytes(values: Tree) -> int:
    return sum(value.numel() * value.element_size() for value in tensors(values))

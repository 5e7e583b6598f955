"""Definition of a method: a frozen table of choices that programs, stages and engines read.

Nothing depends on a method's name. Stages are counted from 0; papers count modules from 1, so
stage k here is module k+1 there.
"""

from dataclasses import dataclass, replace
from typing import Literal, get_args

from hocket.errors import OptionError, format_problems
from hocket.options import wrong_choice
from hocket.signals.signal import Signal

Order = Literal["forward-first", "backward-first"]
Linearize = Literal["stash", "live", "recompute"]
Reduce = Literal["mean", "sum"]
Statistics = Literal["forward", "both"]
EpochEnd = Literal["carry", "drain"]
Sampler = Literal["freshest", "official"]


@dataclass(frozen=True)
class MemoryCount:
    """Largest number of batches and of versions of its weights that a stage holds.

    Attributes:
        graphs: Batches with a graph.
        inputs: Batches with an input.
        versions: Versions of the weights.
    """

    graphs: int
    inputs: int
    versions: int


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Buffer from which a free-running stage draws its inputs.

    Attributes:
        buffer: Number of the last arrived batches that are kept (the paper's M).
        reuse: Limit on the uses of each batch; 0 for no limit.
        sampler: ``freshest`` draws the freshest of the least used batches, as in the paper;
            ``official`` follows the authors' code, where the oldest of them is drawn, a limit
            allows one use less, and a buffer of one does not count uses.

    Raises:
        OptionError: A choice is out of its range.
    """

    buffer: int = 5
    reuse: int = 0
    sampler: Sampler = "freshest"

    def __post_init__(self) -> None:
        problems = []
        if self.buffer < 1:
            problems.append(f"buffer is {self.buffer}; it holds at least 1 batch")
        if self.reuse < 0:
            problems.append(f"reuse is {self.reuse}; use a limit of at least 1, or 0 for none")
        problems += wrong_choice("sampler", self.sampler, get_args(Sampler))
        if self.sampler == "official" and self.reuse == 1:
            problems.append(
                "reuse is 1 with the official sampler, which counts from 1, so that nothing "
                "could ever be drawn; use at least 2"
            )
        if problems:
            raise OptionError(format_problems("this replay is impossible", problems))


@dataclass(frozen=True, kw_only=True)
class Method:
    """One method of decoupled learning as a table of choices.

    Attributes:
        name: Name in records, messages and on the command line.
        paper: Reference of the paper.
        signal: Signal of every stage but the last, the source of its error.
        forward_delay: Ticks that an activation travels to the next stage.
        backward_delay: Ticks that a gradient (or target) travels to the stage before.
        order: Work that a stage does first in a tick in which it has both kinds.
        linearize: Weights that a late gradient is applied at: those of its forward (``stash``),
            current ones with old activations (``live``), or current ones with activations
            computed again (``recompute``).
        accumulate: Number of gradients per update (ADL's M).
        reduce: ``mean`` or ``sum`` of the accumulated gradients.
        statistics: Passes that update BatchNorm's running statistics under ``recompute``.
        epoch_end: ``carry`` batches in flight into the next epoch, or ``drain`` them.
        first_stage_rate: Factor on the learning rate of the first stage.
        replay: Buffers of free-running stages; None if all stages keep step.

    Raises:
        OptionError: A choice is out of its range.
    """

    name: str
    paper: str
    signal: Signal
    forward_delay: int
    backward_delay: int
    order: Order = "forward-first"
    linearize: Linearize = "stash"
    accumulate: int = 1
    reduce: Reduce = "mean"
    statistics: Statistics = "forward"
    epoch_end: EpochEnd = "carry"
    first_stage_rate: float = 1.0
    replay: Replay | None = None

    def __post_init__(self) -> None:
        problems = [
            *wrong_choice("order", self.order, get_args(Order)),
            *wrong_choice("linearize", self.linearize, get_args(Linearize)),
            *wrong_choice("reduce", self.reduce, get_args(Reduce)),
            *wrong_choice("statistics", self.statistics, get_args(Statistics)),
            *wrong_choice("epoch_end", self.epoch_end, get_args(EpochEnd)),
        ]
        problems += [
            f"{field} is {value!r}; use a whole number of at least {least}"
            for field, value, least in (
                ("forward_delay", self.forward_delay, 0),
                ("backward_delay", self.backward_delay, 0),
                ("accumulate", self.accumulate, 1),
            )
            if not isinstance(value, int) or value < least
        ]
        if not self.first_stage_rate > 0:
            problems.append(
                f"first_stage_rate is {self.first_stage_rate!r}; use a number above 0"
            )
        if self.statistics == "both" and self.linearize != "recompute":
            problems.append(
                f"statistics='both' with linearize={self.linearize!r}: "
                "there is no second pass to count; use linearize='recompute'"
            )
        if self.free_running and (
            self.signal.needs_gradient or self.signal.learns_from_gradient
        ):
            problems.append(
                "replay draws batches from a buffer, but the signal needs an answer for each "
                "batch; use a local loss"
            )
        if problems:
            raise OptionError(
                format_problems(f"method {self.name!r} cannot be built", problems)
            )

    @property
    def free_running(self) -> bool:
        """True if each stage runs at a speed of its own, on batches from a buffer."""
        return self.replay is not None

    def with_extra_delay(self, ticks: int) -> "Method":
        """Return the same method with packets that take more ticks, to hide a slow link.

        Args:
            ticks: Ticks that are added to each delay of an edge.

        Raises:
            OptionError: No edge has a delay, so that stages wait inside a tick, or stages are
                free-running and have no ticks.

        >>> from hocket.methods import DDG, FDG
        >>> [FDG().with_extra_delay(1).delay(k, stages=3) for k in range(3)]
        [8, 4, 0]
        >>> [DDG().with_extra_delay(1).delay(k, stages=3) for k in range(3)]
        [4, 2, 0]
        """
        if ticks and self.free_running:
            raise OptionError(
                f"method {self.name!r} has no ticks: its stages do not wait, and need no "
                "extra delay; leave it at 0"
            )
        if ticks and not (self.forward_delay or self.backward_delay):
            raise OptionError(
                f"method {self.name!r} has no delay that could be extended: its stages wait "
                "for each other inside a tick; leave the extra delay at 0, or use another "
                "method"
            )
        return replace(
            self,
            forward_delay=self.forward_delay + ticks * (self.forward_delay > 0),
            backward_delay=self.backward_delay + ticks * (self.backward_delay > 0),
        )

    def delay(self, stage: int, stages: int) -> int:
        """Return the ticks between a stage's forward of a batch and its backward.

        >>> from hocket.methods import FDG
        >>> [FDG().delay(k, stages=4) for k in range(4)]
        [6, 4, 2, 0]
        """
        if not self.signal.needs_gradient:
            return 0
        return (stages - 1 - stage) * (self.forward_delay + self.backward_delay)

    def staleness(self, stage: int, stages: int, batch: int | None = None) -> float:
        """Return the updates of a stage between its forward of a batch and its backward.

        A backward before the forward of the same tick saves one gradient (FDG, arXiv
        1906.09108, section 3).

        Args:
            stage: Number of the stage, from 0.
            stages: Number of stages.
            batch: Number of the batch, from 0, for its exact staleness if no epoch has been
                drained before; None for the mean in steady state.

        >>> from hocket.methods import ADL, FDG
        >>> [FDG().staleness(k, stages=4) for k in range(4)]
        [5.0, 3.0, 1.0, 0.0]
        >>> [ADL(accumulate=4, order="forward-first").staleness(k, stages=3) for k in range(3)]
        [1.0, 0.5, 0.0]
        """
        gradients = self.delay(stage, stages)
        if gradients and self.order == "backward-first":
            gradients -= 1
        if batch is None:
            return gradients / self.accumulate
        return batch // self.accumulate - max(batch - gradients, 0) // self.accumulate

    def memory(self, stage: int, stages: int) -> MemoryCount:
        """Return the largest number of batches that a stage holds in steady state.

        >>> from hocket.methods import FDG
        >>> FDG(order="forward-first").memory(0, stages=2)
        MemoryCount(graphs=3, inputs=3, versions=3)
        """
        delay = self.delay(stage, stages)
        batches = delay if delay and self.order == "backward-first" else delay + 1
        if delay == 0:
            buffer = self.replay.buffer if self.replay and stage > 0 else 1
            return MemoryCount(graphs=1, inputs=buffer, versions=1)
        if self.linearize == "recompute":
            return MemoryCount(graphs=1, inputs=batches, versions=1)
        if self.linearize == "live":
            return MemoryCount(graphs=batches, inputs=batches, versions=1)
        # Rounded up: the batches in flight may straddle one more group of gradients.
        versions = 1 + -(-(batches - 1) // self.accumulate)
        return MemoryCount(graphs=batches, inputs=batches, versions=versions)

    def locks(self) -> tuple[str, ...]:
        """Return the passes that a stage waits for inside a tick, as the literature names them.

        >>> from hocket.methods import BP, DDG, FDG
        >>> BP().locks(), DDG().locks(), FDG().locks()
        (('forward', 'backward', 'update'), ('forward',), ())
        """
        forward = self.forward_delay == 0
        backward = self.signal.needs_gradient and self.backward_delay == 0
        locks = {"forward": forward, "backward": backward, "update": forward and backward}
        return tuple(name for name, locked in locks.items() if locked)

"""What tells one method from another: a frozen table that programs, stages and engines read.

Nothing downstream asks for a method's name. Stages are counted from 0; papers count modules
from 1, so stage k here is module k+1 there.
"""

from dataclasses import dataclass, replace
from typing import Literal

from hocket.errors import OptionError, listed
from hocket.signals.signal import Signal

Order = Literal["forward-first", "backward-first"]
Linearize = Literal["stash", "live", "recompute"]
Reduce = Literal["mean", "sum"]
Statistics = Literal["forward", "both"]
EpochEnd = Literal["carry", "drain"]
Sampler = Literal["freshest", "official"]


@dataclass(frozen=True)
class MemoryCount:
    """What a stage holds at its fullest, counted in batches and in versions of its weights."""

    graphs: int
    inputs: int
    versions: int


@dataclass(frozen=True, kw_only=True)
class Replay:
    """How a stage that runs freely draws its inputs from what has arrived.

    Attributes:
        buffer: The last so many batches that arrived are kept (the paper's M).
        reuse: How often each may be used; 0 for no limit.
        sampler: ``freshest`` of the least used, as the paper says it; or as the ``official``
            code has it, where the oldest one wins a tie, a limit allows one use less, and a
            buffer of one does not count.

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
        if self.sampler not in ("freshest", "official"):
            problems.append(f"sampler is {self.sampler!r}; use 'freshest' or 'official'")
        if self.sampler == "official" and self.reuse == 1:
            problems.append(
                "reuse is 1 with the official sampler, which counts from 1, so that nothing "
                "could ever be drawn; use at least 2"
            )
        if problems:
            raise OptionError(listed("this replay is impossible", problems))


@dataclass(frozen=True, kw_only=True)
class Method:
    """One method of decoupled learning as a table of choices.

    Attributes:
        name: The name under which it is called on the command line.
        paper: Where it comes from.
        signal: Where the error of every stage but the last comes from.
        forward_delay: Ticks that an activation travels to the next stage.
        backward_delay: Ticks that a gradient (or target) travels to the stage before.
        order: What a stage does first in a tick in which it has both kinds of work.
        linearize: At which weights a late gradient is applied.
        accumulate: Gradients per update (ADL's M).
        reduce: What becomes of the accumulated gradients.
        statistics: Which passes count in BatchNorm's running statistics under ``recompute``.
        epoch_end: Whether batches stay in flight from one epoch to the next.
        first_stage_rate: Factor on the learning rate of the first stage.
        replay: How stages draw from buffers, each at its own pace; None where all keep step.

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
            f"{field} is {value!r}; use one of {', '.join(map(repr, allowed))}"
            for field, value, allowed in (
                ("order", self.order, ("forward-first", "backward-first")),
                ("linearize", self.linearize, ("stash", "live", "recompute")),
                ("reduce", self.reduce, ("mean", "sum")),
                ("statistics", self.statistics, ("forward", "both")),
                ("epoch_end", self.epoch_end, ("carry", "drain")),
            )
            if value not in allowed
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
        if self.replay is not None and (
            self.signal.needs_gradient or self.signal.learns_from_gradient
        ):
            problems.append(
                "replay draws batches from a buffer, but the signal wants an answer for each "
                "batch; use a local loss"
            )
        if problems:
            raise OptionError(listed(f"method {self.name!r} cannot be built", problems))

    def with_extra_delay(self, ticks: int) -> "Method":
        """The same method with packets that take so many ticks longer, to hide a slow link.

        Raises:
            OptionError: No edge has a delay, so that stages wait inside a tick, or there are
                no ticks.

        >>> from hocket.methods import DDG, FDG
        >>> [FDG().with_extra_delay(1).delay(k, stages=3) for k in range(3)]
        [8, 4, 0]
        >>> [DDG().with_extra_delay(1).delay(k, stages=3) for k in range(3)]
        [4, 2, 0]
        """
        if ticks and self.replay is not None:
            raise OptionError(
                f"method {self.name!r} has no ticks: its stages wait for nobody, and need no "
                "slack; leave it at 0"
            )
        if ticks and not (self.forward_delay or self.backward_delay):
            raise OptionError(
                f"method {self.name!r} has no delay to which slack could be added: its stages "
                "wait for each other inside a tick; leave slack at 0, or use another method"
            )
        return replace(
            self,
            forward_delay=self.forward_delay + ticks * (self.forward_delay > 0),
            backward_delay=self.backward_delay + ticks * (self.backward_delay > 0),
        )

    def delay(self, stage: int, stages: int) -> int:
        """Ticks between a stage's forward of a batch and its backward.

        >>> from hocket.methods import FDG
        >>> [FDG().delay(k, stages=4) for k in range(4)]
        [6, 4, 2, 0]
        """
        if not self.signal.needs_gradient:
            return 0
        return (stages - 1 - stage) * (self.forward_delay + self.backward_delay)

    def staleness(self, stage: int, stages: int, batch: int | None = None) -> float:
        """Updates of a stage between its forward of a batch and its backward.

        Without ``batch`` it is the mean in steady state; with it, the exact number for that
        batch (counted from 0) when no epoch has been drained before. A backward before the
        forward of the same tick saves one gradient (FDG, arXiv 1906.09108, section 3).

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
        """What the stage holds at its fullest in steady state.

        >>> from hocket.methods import FDG
        >>> FDG(order="forward-first").memory(0, stages=2)
        Memory(graphs=3, inputs=3, versions=3)
        """
        delay = self.delay(stage, stages)
        batches = delay if delay and self.order == "backward-first" else delay + 1
        if delay == 0:
            buffer = self.replay.buffer if self.replay is not None and stage > 0 else 1
            return MemoryCount(graphs=1, inputs=buffer, versions=1)
        if self.linearize == "recompute":
            return MemoryCount(graphs=1, inputs=batches, versions=1)
        if self.linearize == "live":
            return MemoryCount(graphs=batches, inputs=batches, versions=1)
        # Ceiling: the batches in flight may straddle one more group of gradients.
        versions = 1 + -(-(batches - 1) // self.accumulate)
        return MemoryCount(graphs=batches, inputs=batches, versions=versions)

    def locks(self) -> tuple[str, ...]:
        """What a stage must wait for inside a tick, in the words of the literature.

        >>> from hocket.methods import BP, DDG, FDG
        >>> BP().locks(), DDG().locks(), FDG().locks()
        (('forward', 'backward', 'update'), ('forward',), ())
        """
        forward = ("forward",) if self.forward_delay == 0 else ()
        backward = (
            ("backward",) if self.signal.needs_gradient and self.backward_delay == 0 else ()
        )
        return forward + backward + (("update",) if forward and backward else ())

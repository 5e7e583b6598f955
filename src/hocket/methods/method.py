"""Definition of a method: a frozen table of choices that programs, stages and engines read.

The delays, versions and memory that follow from the choices are in `hocket.methods.delays`.
Nothing depends on a method's name. Stages are counted from 0; papers count modules from 1, so
stage k here is module k+1 there.
"""

from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from hocket.errors import OptionError, format_problems
from hocket.methods.delays import Delays
from hocket.methods.replay import Replay
from hocket.options.common_options import Reduce
from hocket.options.hints import wrong_fields
from hocket.options.ranges import Range, out_of_range
from hocket.remedies.conflicts import remedy_problems
from hocket.remedies.remedy import Remedy, StageInfo, count_flushed_updates
from hocket.signals.signal import Signal

Order = Literal["forward-first", "backward-first"]
Linearize = Literal["stash", "live", "recompute"]
Hold = Literal["newest", "vertical", "double"]
Flush = Literal["never", "alternate", "all-forward"]
Statistics = Literal["forward", "both"]
EpochEnd = Literal["carry", "drain"]
MAX_DELAY = 1000
"""Most ticks that a packet may take over one edge; a stage holds a batch for each."""

METHOD_RANGES = {
    "forward_delay": Range(least=0, most=MAX_DELAY),
    "backward_delay": Range(least=0, most=MAX_DELAY),
    "accumulate": Range(least=1),
    "first_stage_rate": Range(above=0),
}
"""Ranges of the numbers of a method."""


@dataclass(frozen=True, kw_only=True)
class Method(Delays):
    """One method of decoupled learning as a table of choices.

    Attributes:
        name: Name in records, messages and on the command line.
        paper: Reference of the paper.
        signal: Signal of every stage but the last, the source of its error.
        forward_delay: Ticks that an activation travels to the next stage.
        backward_delay: Ticks that a gradient (or target) travels to the stage before.
        order: Work that a stage does first in a tick in which it has both kinds.
        linearize: Weights that a late gradient is applied at: its forward's (``stash``),
            current ones with old activations (``live``), or current ones with activations
            computed again (``recompute``).
        hold: Version of its weights that a stage forwards with: its ``newest``; the newest that
            every stage of the network has (``vertical`` sync, arXiv 1806.03377); or, for each
            group of ``accumulate`` batches, the one before the last update (``double``
            buffering, arXiv 2006.09503).
        flush: ``never``, or each group of ``accumulate`` batches leaves the pipeline before the
            next one enters, so that no weight changes between a forward and its backward: its
            forwards and backwards ``alternate`` (1F1B, arXiv 2006.09503), or ``all-forward``
            come before the backwards (GPipe, arXiv 1811.06965, figure 2).
        accumulate: Number of gradients per update (ADL's M).
        reduce: ``mean`` or ``sum`` of the accumulated gradients.
        statistics: Passes that update BatchNorm's running statistics under ``recompute``.
        epoch_end: ``carry`` batches in flight into the next epoch, or ``drain`` them.
        first_stage_rate: Factor on the learning rate of the first stage.
        remedies: Corrections for late gradients, in the order in which they act.
        replay: Buffers of free-running stages; None if all stages keep step.
        edge_delays: Forward and backward delay of each edge, where edges differ, and empty for
            a single stage; None if all have those above.

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
    hold: Hold = "newest"
    flush: Flush = "never"
    accumulate: int = 1
    reduce: Reduce = "mean"
    statistics: Statistics = "forward"
    epoch_end: EpochEnd = "carry"
    first_stage_rate: float = 1.0
    remedies: tuple[Remedy, ...] = ()
    replay: Replay | None = None
    edge_delays: tuple[tuple[int, int], ...] | None = None

    def __post_init__(self) -> None:
        problems = wrong_fields(self) + out_of_range(self, METHOD_RANGES)
        problems += self._contradictions()
        delayed = any(sum(edge) for edge in self.edge_delays or (self._same_delays,))
        late = self.signal.needs_gradient and delayed and not self.flushes
        problems += remedy_problems(
            self.remedies, late=late, hold=self.hold, linearize=self.linearize
        )
        if problems:
            raise OptionError(
                format_problems(f"method {self.name!r} cannot be built", problems)
            )

    @property
    def flushed_updates(self) -> float:
        """First updates before each of which a group of batches leaves the pipeline.

        >>> from hocket.methods import ADL, GPipe
        >>> from hocket.remedies import T3
        >>> GPipe().flushed_updates, ADL().with_remedies(T3(updates=5)).flushed_updates
        (inf, 5)
        """
        return inf if self.flushes else count_flushed_updates(self.remedies)

    @property
    def steady(self) -> "Method":
        """The same method after the first updates before which it flushes the pipeline."""
        lasting = tuple(remedy for remedy in self.remedies if not remedy.flushed_updates)
        return replace(self, remedies=lasting)

    @property
    def free_running(self) -> bool:
        """True if each stage runs at its own speed, on batches from a buffer."""
        return self.replay is not None

    def with_remedies(self, *remedies: Remedy) -> "Method":
        """Return the same method with these remedies after those that it has.

        Raises:
            OptionError: The method cannot have them.

        >>> from hocket.methods import FDG
        >>> from hocket.remedies import T1
        >>> FDG().with_remedies(T1(anneal=500)).remedies
        (T1(anneal=500),)
        """
        return replace(self, remedies=(*self.remedies, *remedies))

    def stage_info(self, stage: int, stages: int) -> StageInfo:
        """Return a stage as remedies know it.

        Args:
            stage: Number of the stage, from 0.
            stages: Number of stages.
        """
        return StageInfo(stage, stages, self.staleness(stage, stages))

    def _contradictions(self) -> list[str]:
        """Return each pair of choices that contradict each other."""
        linearize, hold, signal = self.linearize, self.hold, self.signal
        problems = []
        if self.statistics == "both" and linearize != "recompute":
            problems.append(
                f"statistics='both' with linearize={linearize!r}: "
                "there is no second pass to count; use linearize='recompute'"
            )
        if self.flushes:
            problems += self._flush_contradictions()
        elif hold != "newest" and not (signal.needs_gradient and linearize == "stash"):
            problems.append(
                f"hold={hold!r} with linearize={linearize!r}: a backward has to meet "
                "the old weights of its forward, which are those of linearize='stash' with "
                "gradients from the next stage; leave hold at 'newest'"
            )
        if self.free_running and (signal.needs_gradient or signal.learns_from_gradient):
            problems.append(
                "replay draws batches from a buffer, but the signal needs an answer for each "
                "batch; use a local loss"
            )
        return problems

    def _flush_contradictions(self) -> list[str]:
        """Return each choice that contradicts the flush."""
        flush, linearize, hold = self.flush, self.linearize, self.hold
        problems = []
        if not self.signal.needs_gradient:
            problems.append(
                f"flush={flush!r} waits for gradients from the next stage, and the signal "
                "needs none; leave flush at 'never'"
            )
        if linearize == "live" or hold != "newest":
            problems.append(
                f"flush={flush!r} with linearize={linearize!r} and hold={hold!r}: no weight "
                "changes between a forward and its backward, so there are no others to choose; "
                "use linearize='stash', or 'recompute' to keep inputs instead of graphs, and "
                "hold='newest'"
            )
        if flush == "all-forward" and self.order == "backward-first":
            problems.append(
                "flush='all-forward' with order='backward-first': a backward would begin "
                "before the last forward; use order='forward-first', or flush='alternate'"
            )
        return problems

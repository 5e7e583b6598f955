"""Definition of a method: a frozen table of choices that programs, stages and engines read.

Nothing depends on a method's name. Stages are counted from 0; papers count modules from 1, so
stage k here is module k+1 there.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import wraps
from math import ceil, inf
from typing import Any, Literal, ParamSpec

from hocket.errors import OptionError, raise_problems
from hocket.options.common_options import Reduce
from hocket.options.hints import wrong_fields
from hocket.options.ranges import Range, out_of_range
from hocket.remedies.remedy import Remedy, count_flushed_updates, remedy_problems
from hocket.signals.signal import Signal

Order = Literal["forward-first", "backward-first"]
Linearize = Literal["stash", "live", "recompute", "invert"]
Hold = Literal["newest", "vertical", "double"]
Flush = Literal["never", "alternate", "all-forward"]
Statistics = Literal["forward", "both"]
EpochEnd = Literal["carry", "drain"]
FORWARDS_AGAIN: tuple[Linearize, ...] = ("recompute", "invert")
"""Linearizations whose backward forwards the batch again, and so keeps no graph."""
MAX_DELAY = 1000
"""Most ticks that a packet may take over one edge; a stage holds a batch for each."""

METHOD_RANGES = {
    "forward_delay": Range(least=0, most=MAX_DELAY),
    "backward_delay": Range(least=0, most=MAX_DELAY),
    "accumulate": Range(least=1),
    "first_stage_rate": Range(above=0),
}
"""Ranges of the numbers of a method."""


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
    """Buffer from which a free-running stage draws its inputs, the least used batch first.

    Attributes:
        buffer: Number of the last arrived batches that are kept (the paper's M).
        reuse: Limit on the uses of each batch; 0 for no limit.

    Raises:
        OptionError: A choice is out of its range.
    """

    buffer: int = 5
    reuse: int = 0

    def __post_init__(self) -> None:
        problems = wrong_fields(self)
        problems += out_of_range(self, {"buffer": Range(least=1), "reuse": Range(least=0)})
        raise_problems(OptionError, "this replay is impossible", problems)


@dataclass(frozen=True, kw_only=True)
class Method:
    """One method of decoupled learning as a table of choices.

    Delays, versions and memory follow from them. If every edge between K stages has the delays
    df and db, stage k forwards a batch ``k * df`` ticks after its entry, and back-propagates it
    ``(K-1-k) * (df + db)`` ticks later.

    Attributes:
        name: Name in records, messages and on the command line.
        paper: Reference of the paper.
        signal: Signal of every stage but the last, the source of its error.
        forward_delay: Ticks that an activation travels to the next stage.
        backward_delay: Ticks that a gradient (or target) travels to the stage before.
        order: Work that a stage does first in a tick in which it has both kinds.
        linearize: Weights that a stale gradient is applied at: its forward's (``stash``),
            current ones with old activations (``live``), current ones with activations
            computed again (``recompute``), also where the input is computed from the output
            (``invert``).
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
        remedies: Corrections for stale gradients, in the order in which they act.
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
        if not isinstance(self.signal, Signal):  # it has no attributes to look at
            raise OptionError(
                f"signal is {self.signal!r}, which is no signal; give one such as "
                "hocket.signals.Delayed()"
            )
        problems += self._contradictions()
        delayed = any(sum(edge) for edge in self.edge_delays or (self._same_delays,))
        stale = self.signal.needs_gradient and delayed and not self.flushes
        problems += remedy_problems(
            self.remedies,
            stale=stale,
            own_losses=self.signal.reach > 0,
            hold=self.hold,
            linearize=self.linearize,
        )
        raise_problems(OptionError, f"method {self.name!r} cannot be built", problems)

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

    def _contradictions(self) -> list[str]:
        """Return each pair of choices that contradict each other."""
        linearize, hold, signal, flush = self.linearize, self.hold, self.signal, self.flush
        problems = []
        if self.statistics == "both" and linearize != "recompute":
            problems.append(
                f"statistics='both' with linearize={linearize!r}: "
                "there is no second pass to count; use linearize='recompute'"
            )
        if self.flushes:
            if not signal.needs_gradient:
                problems.append(
                    f"flush={flush!r} waits for gradients from the next stage, and the signal "
                    "needs none; leave flush at 'never'"
                )
            if linearize in ("live", "invert") or hold != "newest":
                problems.append(
                    f"flush={flush!r} with linearize={linearize!r} and hold={hold!r}: no "
                    "weight changes between a forward and its backward, so there are no others "
                    "to choose; use linearize='stash', or 'recompute' to keep inputs instead "
                    "of graphs, and hold='newest'"
                )
            if flush == "all-forward" and self.order == "backward-first":
                problems.append(
                    "flush='all-forward' with order='backward-first': a backward would begin "
                    "before the last forward; use order='forward-first', or flush='alternate'"
                )
        elif hold != "newest" and not (signal.needs_gradient and linearize == "stash"):
            problems.append(
                f"hold={hold!r} with linearize={linearize!r}: a backward has to meet "
                "the old weights of its forward, which are those of linearize='stash' with "
                "gradients from the next stage; leave hold at 'newest'"
            )
        if signal.reach and linearize == "invert":
            problems.append(
                f"linearize='invert' with reach={signal.reach}: an inverted stage learns from "
                "one gradient of its output; use another linearize, or no reach"
            )
        if self.free_running and signal.expects_answer:
            problems.append(
                "replay draws batches from a buffer, but the signal needs an answer for each "
                "batch; use a local loss"
            )
        return problems

    # Delays, versions of the weights and memory, as they follow from the choices.

    @property
    def flushes(self) -> bool:
        """True if a group of batches leaves the pipeline before the next one enters.

        >>> from hocket.methods import ADL, GPipe
        >>> GPipe().flushes, ADL().flushes
        (True, False)
        """
        return self.flush != "never"

    def edge_delay(self, edge: int) -> tuple[int, int]:
        """Return the ticks forward and backward over the edge behind a stage."""
        return self._same_delays if self.edge_delays is None else self.edge_delays[edge]

    @property
    def _same_delays(self) -> tuple[int, int]:
        return self.forward_delay, self.backward_delay

    def entry(self, stage: int) -> int:
        """Return the ticks from the entrance of a batch to its forward at a stage."""
        return sum(self.edge_delay(edge)[0] for edge in range(stage))

    def flight(self, stages: int) -> int:
        """Return the ticks from a batch's first action to its last.

        A gradient comes back over every edge, a target over one.
        """
        last = self.entry(stages - 1)
        if self.signal.needs_gradient:
            return self.delay(0, stages)
        if not self.signal.learns_from_gradient:
            return last
        returns = (self.entry(k + 1) + self.edge_delay(k)[1] for k in range(stages - 1))
        return max(returns, default=last)

    def delay(self, stage: int, stages: int) -> int:
        """Return the ticks between a stage's forward of a batch and its backward.

        >>> from hocket.methods import FDG
        >>> [FDG().delay(k, stages=4) for k in range(4)]
        [6, 4, 2, 0]
        """
        if not self.signal.needs_gradient:
            return 0
        turn = self.accumulate - 1 if self.flush == "all-forward" else 0
        return turn + sum(sum(self.edge_delay(edge)) for edge in range(stage, stages - 1))

    def gradients_sent(self, stage: int, stages: int) -> int:
        """Return the gradients of each tensor that a stage sends back for a batch.

        Those that may cross different numbers of further edges are sent side by side.

        >>> from hocket.methods import DGL, FDG
        >>> [method.gradients_sent(2, stages=5) for method in (DGL(), FDG(), DGL(reach=2))]
        [0, 1, 2]
        """
        signal = self.signal
        if stage == 0 or not signal.expects_answer:
            return 0
        if not signal.reach:
            return 1
        # Losses of this stage and of the last one whose gradients it sends on.
        farthest = min(signal.reach, stage)
        behind = min(signal.reach - 1, stages - 1 - stage)
        return farthest - min(signal.reach - behind, stage) + 1

    def holds(self, stages: int) -> bool:
        """Return True if stages forward with older weights than their newest.

        Where no stage is behind another, the newest weights are the same version everywhere.

        >>> from hocket.methods import PipeDream
        >>> [PipeDream(hold="vertical").holds(stages) for stages in (1, 2)]
        [False, True]
        """
        return self.hold != "newest" and self._gradients_missed(0, stages) > 0

    def graph_delay(self, stage: int, stages: int) -> int:
        """Return the delay for which a stage linearizes; 0 if a plain graph is enough.

        A last stage that forwards with old weights has its gradient at once, and yet other
        weights between its forward and its backward. In a pipeline that is flushed no weight
        changes in between.
        """
        if self.flushes and self.linearize != "recompute":
            return 0
        return self.delay(stage, stages) or int(self.holds(stages))

    def batches_between(self, stage: int, stages: int) -> int:
        """Return the batches that a stage forwards between a forward and its backward."""
        delay = self.delay(stage, stages)
        between = delay - 1 if delay and self.order == "backward-first" else delay
        return min(between, self.accumulate - 1) if self.flushes else between

    def _gradients_missed(self, stage: int, stages: int) -> int:
        """Return the batches between a forward and its backward whose gradients it misses."""
        return 0 if self.flushes else self.batches_between(stage, stages)

    def forward_versions(self, stage: int, stages: int) -> Callable[[int], int]:
        """Return the function from a batch to the updates that its forward's weights have seen.

        The batch is its number, from 0, if no epoch has been drained before.

        >>> from hocket.methods import PipeDream2BW
        >>> version = PipeDream2BW(accumulate=2).forward_versions(0, stages=3)
        >>> [version(batch) for batch in range(8)]
        [0, 0, 0, 0, 1, 1, 2, 2]
        """
        accumulate = self.accumulate
        if self.hold == "double" and self.holds(stages):
            return lambda batch: max(batch // accumulate - 1, 0)
        last = 0 if self.hold == "vertical" else stage  # the stage that is last to update
        missed = self._gradients_missed(last, stages)
        return lambda batch: max(batch - missed, 0) // accumulate

    def held_back(self, stage: int, stages: int) -> int:
        """Return the most updates by which a forward is older, of a method that `holds`.

        >>> from hocket.methods import PipeDream
        >>> [PipeDream(hold="vertical").held_back(k, stages=4) for k in range(4)]
        [0, 1, 2, 3]
        """
        if self.hold == "double":
            return 1
        least, most = self._gradients_missed(stage, stages), self._gradients_missed(0, stages)
        return ceil((most - least) / self.accumulate)

    def require_stages(self, stages: int) -> None:
        """Refuse a number of stages that the method's delays or versions are not for.

        Raises:
            OptionError: The delays are for another number of edges, gradients would have to
                cross more edges than there are, or a forward needs weights that do not exist
                yet, as there are too few gradients per update.
        """
        edges = stages - 1 if self.edge_delays is None else len(self.edge_delays)
        if edges != stages - 1:
            raise OptionError(
                f"method {self.name!r} has delays of the edges between {edges + 1} stages, and "
                f"there are {stages}; give a staleness for each stage, or an extra delay for "
                "each edge"
            )
        if stages > 0 and self.signal.reach > stages - 1:
            raise OptionError(
                f"method {self.name!r} has reach={self.signal.reach}, and the last of {stages} "
                f"stages is {stages - 1} edges behind the first; use reach={stages - 1} or "
                "less, or more stages"
            )
        least = self._gradients_missed(0, stages)
        if self.hold == "double" and self.accumulate < least:
            raise OptionError(
                f"method {self.name!r} on {stages} stages: with hold='double' and "
                f"accumulate={self.accumulate} stage 0 would forward batches with an update "
                f"that it has not done; use accumulate={least} or more, or fewer stages"
            )

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
        if batch is not None:
            return batch // self.accumulate - self.forward_versions(stage, stages)(batch)
        if self.hold == "double":
            return float(self.holds(stages))
        last = 0 if self.hold == "vertical" else stage
        return self._gradients_missed(last, stages) / self.accumulate

    def memory(self, stage: int, stages: int, *, inverts: bool = True) -> MemoryCount:
        """Return the largest number of batches that a stage holds in steady state.

        Args:
            stage: Number of the stage, from 0.
            stages: Number of stages.
            inverts: False for a stage that ``invert`` cannot invert.

        >>> from hocket.methods import FDG
        >>> FDG(order="forward-first").memory(0, stages=2)
        MemoryCount(graphs=3, inputs=3, versions=3)
        """
        batches = self.batches_between(stage, stages) + 1
        # Rounded up: the batches in flight may straddle one more group of gradients.
        versions = 1 if self.linearize == "live" else 1 + ceil(self.staleness(stage, stages))
        if self.holds(stages):
            return MemoryCount(graphs=batches, inputs=batches, versions=versions)
        if self.delay(stage, stages) == 0:
            buffer = self.replay.buffer if self.replay and stage > 0 else 1
            return MemoryCount(graphs=1, inputs=buffer, versions=1)
        if self.linearize in FORWARDS_AGAIN:
            kept = 1 if self.linearize == "invert" and inverts else batches
            return MemoryCount(graphs=1, inputs=kept, versions=1)
        return MemoryCount(graphs=batches, inputs=batches, versions=versions)

    def locks(self) -> tuple[str, ...]:
        """Return the passes that a stage waits for, as the literature names them.

        It waits inside a tick, or for the end of a group that is flushed.

        >>> from hocket.methods import BP, DDG, FDG
        >>> BP().locks(), DDG().locks(), FDG().locks()
        (('forward', 'backward', 'update'), ('forward',), ())
        """
        if self.flushes:
            return "forward", "backward", "update"
        edges = self.edge_delays or (self._same_delays,)
        forward = min(forward for forward, _ in edges) == 0
        backward = self.signal.needs_gradient and min(back for _, back in edges) == 0
        locks = {"forward": forward, "backward": backward, "update": forward and backward}
        return tuple(name for name, locked in locks.items() if locked)


P = ParamSpec("P")


def preset(
    paper: str, signal: Callable[..., Signal], **fixed: Any
) -> Callable[[Callable[P, Method]], Callable[P, Method]]:
    """Return a decorator that makes a signature into a function that builds a method.

    Each argument of that function is a choice of the method, or goes to the signal;
    ``recompute=True`` stands for the choice ``linearize="recompute"``.

    Args:
        paper: Reference of the paper.
        signal: Builds the signal from the arguments that are no choices of a method.
        fixed: Choices that all its methods share.
    """
    choices = {field.name for field in fields(Method)}

    def decorate(function: Callable[P, Method]) -> Callable[P, Method]:
        signature = inspect.signature(function)

        @wraps(function)
        def build(*args: P.args, **kwargs: P.kwargs) -> Method:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            again = given.arguments.pop("recompute", False)
            if not isinstance(again, bool):
                raise OptionError(f"recompute is {again!r}; use True or False")
            if again:
                given.arguments["linearize"] = "recompute"
            chosen = {n: value for n, value in given.arguments.items() if n in choices}
            others = {n: value for n, value in given.arguments.items() if n not in choices}
            return Method(paper=paper, signal=signal(**others), **fixed, **chosen)

        return build

    return decorate

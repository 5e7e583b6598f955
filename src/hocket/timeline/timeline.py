"""All that was recorded of a training, as a value.

A wait or a send in the middle of an action is a span inside the action's span; its time is its
own and not the action's.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hocket.errors import DataError, OptionError
from hocket.timeline import trace_file
from hocket.timeline.span import ACTIONS, KINDS, Fractions, Span, Totals


@dataclass(frozen=True)
class Timeline:
    """All that was recorded of a training, in the order of time; an outer span first.

    Args:
        spans: In any order. Those of one stage lie apart or one in the other.

    Raises:
        DataError: A span is none, or two of a stage overlap.

    >>> backward = Span(0, "B", 7, 9, start_s=0.0, end_s=10.0)
    >>> gradient = Span(0, "wait", 7, 9, start_s=2.0, end_s=5.0)
    >>> Timeline((backward, gradient)).fractions()
    {0: Fractions(busy=0.7, communication=0.0, waiting=0.3)}
    """

    spans: tuple[Span, ...]

    def __post_init__(self) -> None:
        problems = [f"{span}: {wrong}" for span in self.spans for wrong in _wrong(span)]
        if not problems:
            object.__setattr__(self, "spans", tuple(sorted(self.spans, key=_order)))
            problems = list(_overlaps(self.spans))
        if problems:
            raise DataError(trace_file.some("not a timeline", problems))

    @property
    def stages(self) -> tuple[int, ...]:
        """The stages of which anything was recorded."""
        return tuple(sorted({span.stage for span in self.spans}))

    @property
    def batches(self) -> tuple[int, ...]:
        """The batches to which any stage did anything."""
        return tuple(sorted({span.batch for span in self.spans if span.kind in ACTIONS}))

    @property
    def length_s(self) -> float:
        """The time from the beginning of the first span of all to the end of the last."""
        if not self.spans:
            return 0.0
        return max(span.end_s for span in self.spans) - self.spans[0].start_s

    def totals(self) -> dict[int, Totals]:
        """The seconds of each stage; a wait or send inside an action counts as what it is."""
        pieces = _by_stage(self.flat().spans)
        return {
            stage: Totals.of((p.kind, p.end_s - p.start_s) for p in pieces.get(stage, []))
            for stage in self.stages
        }

    def fractions(self) -> dict[int, Fractions]:
        """The same as parts of the length of the whole timeline."""
        length_s = self.length_s
        return {stage: totals.over(length_s) for stage, totals in self.totals().items()}

    def flat(self) -> "Timeline":
        """The same time in pieces of which none lies in another.

        >>> backward = Span(0, "B", 7, 9, start_s=0.0, end_s=10.0)
        >>> gradient = Span(0, "wait", 7, 9, start_s=2.0, end_s=5.0)
        >>> [(p.kind, p.end_s) for p in Timeline((backward, gradient)).flat().spans]
        [('B', 2.0), ('wait', 5.0), ('B', 10.0)]
        """
        stages = _by_stage(self.spans).values()
        return Timeline(tuple(piece for spans in stages for piece in _pieces(spans)))

    def window(self, first: int | None = None, batches: int | None = None) -> "Timeline":
        """All that happened from the first action on one batch to the last on another.

        Args:
            first: The batch to begin with; None for the first of the timeline.
            batches: The number of batches, 1 or more; None for all that follow.

        Raises:
            OptionError: The timeline does not have the batch.
        """
        known = self.batches
        if not known:
            raise OptionError("the timeline has no batches; record a training that has some")
        if first is None:
            first = known[0]
        if first not in known:
            raise OptionError(
                f"the timeline has no batch {first}; choose one of {known[0]} to {known[-1]}"
            )
        stop = math.inf if batches is None else first + batches
        shown = [s for s in self.spans if s.kind in ACTIONS and first <= s.batch < stop]
        start_s, end_s = shown[0].start_s, max(span.end_s for span in shown)
        return Timeline(
            tuple(
                replace(s, start_s=max(s.start_s, start_s), end_s=min(s.end_s, end_s))
                for s in self.spans
                if s.start_s < end_s and s.end_s > start_s
            )
        )

    def until(self, tick: int) -> "Timeline":
        """What was done before a tick."""
        return Timeline(tuple(span for span in self.spans if span.tick < tick))

    def then(self, later: "Timeline") -> "Timeline":
        """This one with another behind it, whose clock began anew: no time lies between.

        >>> first = Timeline((Span(0, "F", 0, 0, start_s=5.0, end_s=6.0),))
        >>> second = Timeline((Span(0, "F", 1, 1, start_s=0.5, end_s=1.0),))
        >>> [(span.batch, span.end_s) for span in first.then(second).spans]
        [(0, 6.0), (1, 6.5)]
        """
        if not (self.spans and later.spans):
            return Timeline(self.spans + later.spans)
        gap_s = max(span.end_s for span in self.spans) - later.spans[0].start_s
        return Timeline(
            self.spans
            + tuple(
                replace(s, start_s=s.start_s + gap_s, end_s=s.end_s + gap_s)
                for s in later.spans
            )
        )

    def write(self, file: Path) -> None:
        """Write Chrome's trace format, to a nanosecond; arrows show what fed what.

        Raises:
            OptionError: The file cannot be written.
        """
        trace_file.write_trace(file, self.spans, self.flat().spans)

    @staticmethod
    def read(file: Path) -> "Timeline":
        """The timeline that :meth:`write` wrote.

        Raises:
            DataError: The file is missing, damaged, or of another program.
        """
        spans = trace_file.read_trace(file)
        try:
            return Timeline(spans)
        except DataError as error:
            raise DataError(
                f"the timeline {str(file)!r} is damaged; record it again: {error}"
            ) from error


def _order(span: Span) -> tuple[float, float, int, int, int, int]:
    """By time, an outer span first; of the same time, an action is outside a send or wait."""
    kind = tuple(KINDS).index(span.kind)
    return (span.start_s, -span.end_s, span.stage, kind, span.batch, span.tick)


def _wrong(span: Span) -> Iterator[str]:
    """Why a span is none."""
    if span.kind not in KINDS:
        yield f"the kind is {span.kind!r}; wanted one of {', '.join(KINDS)}"
    if min(span.stage, span.batch, span.tick) < 0:
        yield "stage, batch and tick are counted from 0; one of them is negative"
    if not -math.inf < span.start_s <= span.end_s < math.inf:
        yield "it must end after it starts; take both times from one clock"


def _by_stage(spans: Sequence[Span]) -> dict[int, list[Span]]:
    stages: dict[int, list[Span]] = {}
    for span in spans:
        stages.setdefault(span.stage, []).append(span)
    return stages


def _overlaps(spans: Sequence[Span]) -> Iterator[str]:
    """Spans of one stage that begin in each other but do not end in each other."""
    for mine in _by_stage(spans).values():
        around: list[Span] = []
        for span in mine:
            while around and around[-1].end_s <= span.start_s:
                around.pop()
            if around and around[-1].end_s < span.end_s:
                yield f"{span}: overlaps {around[-1]}; use one recorder for each stage"
            around.append(span)


def _pieces(spans: Sequence[Span]) -> Iterator[Span]:
    """The time of one stage, cut wherever a span begins or ends, for the innermost span."""
    around: list[Span] = []
    now = -math.inf
    for span in [*spans, None]:
        until = math.inf if span is None else span.start_s
        while around and around[-1].end_s <= until:
            inner = around.pop()
            if now < inner.end_s:
                yield replace(inner, start_s=now)
                now = inner.end_s
        if span is not None:
            if around and now < until:
                yield replace(around[-1], start_s=now, end_s=until)
            around.append(span)
            now = until

"""Timeline: all spans recorded of a training, as a value.

A wait or a send in the middle of an action is a span inside the action's span; its time is not
counted as the action's.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hocket.errors import DataError, OptionError
from hocket.timeline import trace_file
from hocket.timeline.recorder import ACTION_KINDS, KIND_NAMES, Fractions, Span, SpanKind


@dataclass(frozen=True)
class Timeline:
    """All spans of a training, sorted by time; an outer span comes before its inner ones.

    Args:
        spans: Spans in any order. Two spans of one stage must be disjoint or nested.

    >>> backward = Span(0, "B", 7, 9, start_s=0.0, end_s=10.0)
    >>> gradient = Span(0, "wait", 7, 9, start_s=2.0, end_s=5.0)
    >>> Timeline((backward, gradient)).fractions()
    {0: Fractions(busy=0.7, communication=0.0, waiting=0.3)}
    """

    spans: tuple[Span, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "spans", tuple(sorted(self.spans, key=_sort_key)))

    @property
    def stages(self) -> tuple[int, ...]:
        """Stages that have spans, in ascending order."""
        return tuple(sorted({span.stage for span in self.spans}))

    @property
    def batches(self) -> tuple[int, ...]:
        """Batches that have actions, in ascending order."""
        return tuple(sorted({span.batch for span in self.spans if span.kind in ACTION_KINDS}))

    @property
    def length_s(self) -> float:
        """Seconds from the start of the first span to the end of the last."""
        if not self.spans:
            return 0.0
        return max(span.end_s for span in self.spans) - self.spans[0].start_s

    def seconds(self) -> dict[int, dict[SpanKind, float]]:
        """Add up the seconds of each stage; a wait inside an action counts as a wait."""
        added = {stage: dict.fromkeys(KIND_NAMES, 0.0) for stage in self.stages}
        for piece in self.flatten().spans:
            added[piece.stage][piece.kind] += piece.end_s - piece.start_s
        return added

    def fractions(self) -> dict[int, Fractions]:
        """Return the time of each stage as fractions of the length of the whole timeline."""
        return {stage: Fractions.of(s, self.length_s) for stage, s in self.seconds().items()}

    def flatten(self) -> "Timeline":
        """Split nested spans into pieces that do not overlap, keeping the innermost ones.

        >>> backward = Span(0, "B", 7, 9, start_s=0.0, end_s=10.0)
        >>> gradient = Span(0, "wait", 7, 9, start_s=2.0, end_s=5.0)
        >>> [(p.kind, p.end_s) for p in Timeline((backward, gradient)).flatten().spans]
        [('B', 2.0), ('wait', 5.0), ('B', 10.0)]
        """
        stages: dict[int, list[Span]] = defaultdict(list)
        for span in self.spans:
            stages[span.stage].append(span)
        each = stages.values()
        return Timeline(tuple(piece for spans in each for piece in _flatten_stage(spans)))

    def window(self, first: int | None = None, batches: int | None = None) -> "Timeline":
        """Return the part from the first action on one batch to the last on another.

        Args:
            first: Batch to begin with; None for the first of the timeline.
            batches: Number of batches, 1 or more; None for all that follow.

        Raises:
            OptionError: The timeline does not have the batch, or there are none to return.
            DataError: All actions on these batches take no time.
        """
        if batches is not None and batches < 1:
            raise OptionError(f"batches is {batches}; use at least 1")
        # Find the first batch.
        present = self.batches
        if not present:
            raise OptionError("the timeline has no batches; record a training that has some")
        if first is None:
            first = present[0]
        if first not in present:
            raise OptionError(
                f"the timeline has no batch {first}; "
                f"choose one of {present[0]} to {present[-1]}"
            )
        # Cut all spans to the time of the actions on the batches.
        stop = math.inf if batches is None else first + batches
        chosen = [s for s in self.spans if s.kind in ACTION_KINDS and first <= s.batch < stop]
        start_s, end_s = chosen[0].start_s, max(span.end_s for span in chosen)
        if start_s == end_s:
            raise DataError(
                f"the actions on batches from {first} on all begin and end at {start_s} s; "
                "choose other batches, or record the timeline again"
            )
        return Timeline(
            tuple(
                replace(s, start_s=max(s.start_s, start_s), end_s=min(s.end_s, end_s))
                for s in self.spans
                if s.start_s < end_s and s.end_s > start_s
            )
        )

    def before_tick(self, tick: int) -> "Timeline":
        """Return the spans of the ticks before this one."""
        return Timeline(tuple(span for span in self.spans if span.tick < tick))

    def concatenate(self, later: "Timeline") -> "Timeline":
        """Append a timeline with another clock, so that it begins where this one ends.

        >>> first = Timeline((Span(0, "F", 0, 0, start_s=5.0, end_s=6.0),))
        >>> second = Timeline((Span(0, "F", 1, 1, start_s=0.5, end_s=1.0),))
        >>> [(span.batch, span.end_s) for span in first.concatenate(second).spans]
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

    def write(self, file: Path | str) -> None:
        """Write a file in Chrome's trace format, with arrows from each packet to its receiver.

        Raises:
            OptionError: The file cannot be written.
        """
        trace_file.write_trace(Path(file), self.spans, self.flatten().spans)

    @staticmethod
    def read(file: Path | str) -> "Timeline":
        """Read a timeline that :meth:`write` wrote.

        Raises:
            DataError: The file is missing, damaged, or of another program.
        """
        events = trace_file.read_events(Path(file))
        try:
            # Titles and arrows are derived from the spans.
            spans = [trace_file.parse_span(event) for event in events if event["ph"] == "X"]
            return Timeline(tuple(spans))
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            raise DataError(
                f"the timeline {str(file)!r} is damaged ({type(error).__name__}: {error}); "
                "record it again"
            ) from error


def _sort_key(span: Span) -> tuple[float, float, int, int, int, int]:
    """Sort by start, outer spans first; of equal times, an action encloses a send or wait."""
    kind = tuple(KIND_NAMES).index(span.kind)
    return (span.start_s, -span.end_s, span.stage, kind, span.batch, span.tick)


def _flatten_stage(spans: Sequence[Span]) -> Iterator[Span]:
    """Split the spans of one stage wherever one begins or ends, keeping the innermost."""
    enclosing: list[Span] = []
    now_s = -math.inf
    for span in [*spans, None]:
        until_s = math.inf if span is None else span.start_s
        while enclosing and enclosing[-1].end_s <= until_s:
            inner = enclosing.pop()
            if now_s < inner.end_s:
                yield replace(inner, start_s=now_s)
                now_s = inner.end_s
        if span is not None:
            if enclosing and now_s < until_s:
                yield replace(enclosing[-1], start_s=now_s, end_s=until_s)
            enclosing.append(span)
            now_s = until_s

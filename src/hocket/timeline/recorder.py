"""Recorder of the time that a stage spends on actions, waits and sends.

Times are measured on the host: work queued on an accelerator counts for the span that waits for
it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

from hocket.timeline.span import KIND_NAMES, Span, SpanKind, Totals


class Recorder:
    """Recorder of the spans of one stage, in one thread.

    The time of an inner span is subtracted from the outer one: a backward that waits is not
    busy.

    Args:
        stage: Index of the stage.
        keep: Keep every span; otherwise only the totals are kept, in constant memory.
        clock: Returns seconds; the clock must be common to all stages, as ``perf_counter`` is
            for all processes of a machine.

    >>> ticks = iter([0.0, 2.0, 5.0, 10.0])
    >>> recorder = Recorder(stage=0, clock=lambda: next(ticks))
    >>> with recorder.span("B", batch=7, tick=9):
    ...     with recorder.span("wait", batch=7, tick=9):
    ...         pass
    >>> recorder.totals
    Totals(busy_s=7.0, communication_s=0.0, waiting_s=3.0)
    """

    def __init__(
        self, stage: int, *, keep: bool = True, clock: Callable[[], float] = perf_counter
    ) -> None:
        self.stage = stage
        self.keep = keep
        self._clock = clock
        self._open: list[tuple[SpanKind, int, int, float]] = []
        self._inside_s = [0.0]  # of spans that are in no other, and of those in each open one
        self._seconds: dict[SpanKind, float] = dict.fromkeys(KIND_NAMES, 0.0)
        self._rows: list[tuple[SpanKind, int, int, float, float]] = []

    @contextmanager
    def span(self, kind: SpanKind, batch: int, tick: int) -> Iterator[None]:
        """Context manager that records its time, also if an exception ends it.

        Args:
            kind: Kind of the action, or ``send`` or ``wait``.
            batch: Index of the batch.
            tick: Index of the tick.
        """
        self.begin(kind, batch, tick)
        try:
            yield
        finally:
            self.end()

    def begin(self, kind: SpanKind, batch: int, tick: int) -> None:
        """Begin a span within those that are open.

        Args:
            kind: Kind of the action, or ``send`` or ``wait``.
            batch: Index of the batch.
            tick: Index of the tick.
        """
        self._inside_s.append(0.0)
        self._open.append((kind, batch, tick, self._clock()))

    def end(self) -> None:
        """End the span that was begun last."""
        end_s = self._clock()
        kind, batch, tick, start_s = self._open.pop()
        duration_s = end_s - start_s
        self._seconds[kind] += duration_s - self._inside_s.pop()
        self._inside_s[-1] += duration_s
        if self.keep:
            self._rows.append((kind, batch, tick, start_s, end_s))

    @property
    def totals(self) -> Totals:
        """Seconds spent in the spans that have ended."""
        return Totals.from_seconds(self._seconds.items())

    @property
    def spans(self) -> tuple[Span, ...]:
        """Spans that have ended; empty if they are not kept."""
        return tuple(Span(self.stage, *row) for row in self._rows)

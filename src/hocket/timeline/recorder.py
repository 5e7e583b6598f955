"""Recorder of the time that a stage spends on actions, waits and sends.

Times are those of the host: work queued on an accelerator counts for the span that waits for
it.
"""

from collections.abc import Callable
from time import perf_counter
from types import TracebackType

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
        self._innermost: _Timing | None = None
        self._seconds: dict[SpanKind, float] = dict.fromkeys(KIND_NAMES, 0.0)
        self._rows: list[tuple[SpanKind, int, int, float, float]] = []

    def span(self, kind: SpanKind, batch: int, tick: int) -> "_Timing":
        """Return a context manager that records its time, also if an exception ends it.

        Args:
            kind: Kind of the action, or ``send`` or ``wait``.
            batch: Index of the batch.
            tick: Index of the tick.
        """
        return _Timing(self, kind, batch, tick)

    @property
    def totals(self) -> Totals:
        """Seconds spent in the spans that have ended."""
        return Totals.from_seconds(self._seconds.items())

    @property
    def spans(self) -> tuple[Span, ...]:
        """Spans that have ended; empty if they are not kept."""
        return tuple(Span(self.stage, *row) for row in self._rows)


class _Timing:
    """Context manager of a span that is being recorded."""

    __slots__ = ("_batch", "_inside_s", "_kind", "_outer", "_recorder", "_start_s", "_tick")

    def __init__(self, recorder: Recorder, kind: SpanKind, batch: int, tick: int) -> None:
        self._recorder = recorder
        self._kind: SpanKind = kind
        self._batch = batch
        self._tick = tick
        self._inside_s = 0.0

    def __enter__(self) -> None:
        recorder = self._recorder
        self._outer = recorder._innermost
        recorder._innermost = self
        self._start_s = recorder._clock()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        recorder = self._recorder
        end_s = recorder._clock()
        duration_s = end_s - self._start_s
        recorder._innermost = self._outer
        recorder._seconds[self._kind] += duration_s - self._inside_s
        if self._outer is not None:
            self._outer._inside_s += duration_s
        if recorder.keep:
            recorder._rows.append((self._kind, self._batch, self._tick, self._start_s, end_s))

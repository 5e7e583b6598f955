"""What a stage spends its time on, recorded while it works.

Times are those of the host: what is queued on an accelerator counts for whoever waits for it.
"""

from collections.abc import Callable
from time import perf_counter
from types import TracebackType

from hocket.timeline.span import KINDS, Span, SpanKind, Totals


class Recorder:
    """Times what one stage does, in one thread.

    A span within a span is taken from the outer one's time: a backward that waits is not busy.

    Args:
        stage: The stage.
        keep: Keep every span; otherwise only the totals, in memory that does not grow.
        clock: Seconds, from a clock common to all stages; ``perf_counter`` is common to all
            processes of a machine.

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
        self._seconds: dict[SpanKind, float] = dict.fromkeys(KINDS, 0.0)
        self._rows: list[tuple[SpanKind, int, int, float, float]] = []

    def span(self, kind: SpanKind, batch: int, tick: int) -> "_Timing":
        """A context whose time is recorded, also if an exception ends it."""
        return _Timing(self, kind, batch, tick)

    @property
    def totals(self) -> Totals:
        """Seconds spent in spans that have ended."""
        return Totals.of(self._seconds.items())

    @property
    def spans(self) -> tuple[Span, ...]:
        """The spans that have ended; none if they are not kept."""
        return tuple(Span(self.stage, *row) for row in self._rows)


class _Timing:
    """A span while it lasts."""

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
        took_s = end_s - self._start_s
        recorder._innermost = self._outer
        recorder._seconds[self._kind] += took_s - self._inside_s
        if self._outer is not None:
            self._outer._inside_s += took_s
        if recorder.keep:
            recorder._rows.append((self._kind, self._batch, self._tick, self._start_s, end_s))

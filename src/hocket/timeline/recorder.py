"""Spans of time of a stage, sums of their durations, and the recorder that measures them.

Times are measured on the host: work queued on an accelerator counts for the span that waits for
it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Literal

SpanKind = Literal["F", "B", "U", "T", "send", "wait"]
"""Kinds of a program's actions, and of the time between them."""

KIND_NAMES: Mapping[SpanKind, str] = {
    "F": "forward",
    "B": "backward",
    "U": "update",
    "T": "target",
    "send": "send",
    "wait": "wait",
}
"""Name of each kind."""

ACTION_KINDS: tuple[SpanKind, ...] = ("F", "B", "U", "T")


@dataclass(frozen=True)
class Span:
    """An action, wait or send of one stage for one batch, on a clock common to all stages.

    >>> Span(0, "F", 12, 14, 0.25, 0.5).name
    'forward 12'
    """

    stage: int
    kind: SpanKind
    batch: int
    tick: int
    start_s: float
    end_s: float

    @property
    def name(self) -> str:
        """Name of the kind, and the batch."""
        return f"{KIND_NAMES[self.kind]} {self.batch}"


@dataclass(frozen=True)
class Fractions:
    """Fractions of a stage's time; the rest of 1 was not recorded."""

    busy: float
    communication: float
    waiting: float

    @staticmethod
    def of(seconds: Mapping[SpanKind, float], length_s: float) -> "Fractions":
        """Divide the seconds of each kind of span by a duration; all are 0 if it is 0.

        >>> Fractions.of({"F": 2.0, "B": 4.0, "send": 1.0, "wait": 2.0}, length_s=10.0)
        Fractions(busy=0.6, communication=0.1, waiting=0.2)
        """
        busy_s = sum(seconds.get(kind, 0.0) for kind in ACTION_KINDS)
        spent_s = (busy_s, seconds.get("send", 0.0), seconds.get("wait", 0.0))
        return Fractions(*(s / length_s if length_s > 0 else 0.0 for s in spent_s))


class Recorder:
    """Recorder of the spans of one stage, in one thread.

    The time of an inner span is subtracted from the outer one: a backward that waits is not
    busy.

    Args:
        stage: Index of the stage.
        keep: Keep every span; otherwise only sums are kept, in constant memory.
        clock: Returns seconds; the clock must be common to all stages, as ``perf_counter`` is
            for all processes of a machine.

    >>> ticks = iter([0.0, 2.0, 5.0, 10.0])
    >>> recorder = Recorder(stage=0, clock=lambda: next(ticks))
    >>> with recorder.span("B", batch=7, tick=9):
    ...     with recorder.span("wait", batch=7, tick=9):
    ...         pass
    >>> recorder.seconds["B"], recorder.seconds["wait"]
    (7.0, 3.0)
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
    def seconds(self) -> dict[SpanKind, float]:
        """Seconds spent in the spans of each kind that have ended."""
        return dict(self._seconds)

    @property
    def spans(self) -> tuple[Span, ...]:
        """Spans that have ended; empty if they are not kept."""
        return tuple(Span(self.stage, *row) for row in self._rows)

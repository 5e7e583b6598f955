"""Spans of time of a stage, sums of their durations, and the recorder that measures them.

Times are measured on the host: work queued on an accelerator counts for the span that waits for
it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
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
        return f"{KIND_NAMES.get(self.kind, self.kind)} {self.batch}"

    def __str__(self) -> str:
        return f"{self.name} of stage {self.stage}, {self.start_s:g} s to {self.end_s:g} s"


@dataclass(frozen=True)
class Fractions:
    """Fractions of a stage's time; the rest of 1 was not recorded."""

    busy: float
    communication: float
    waiting: float


@dataclass(frozen=True)
class Totals:
    """Seconds that a stage spent in actions, sends and waits."""

    busy_s: float
    communication_s: float
    waiting_s: float

    @staticmethod
    def from_seconds(seconds: Iterable[tuple[SpanKind, float]]) -> "Totals":
        """Add up durations by their kind.

        >>> Totals.from_seconds([("F", 1.0), ("wait", 0.5), ("B", 2.0)])
        Totals(busy_s=3.0, communication_s=0.0, waiting_s=0.5)
        """
        spent: dict[SpanKind, float] = defaultdict(float)
        for kind, duration_s in seconds:
            spent[kind] += duration_s
        return Totals(sum(spent[kind] for kind in ACTION_KINDS), spent["send"], spent["wait"])

    def since(self, earlier: "Totals") -> "Totals":
        """Return the difference to earlier totals of the same stage."""
        return Totals(
            self.busy_s - earlier.busy_s,
            self.communication_s - earlier.communication_s,
            self.waiting_s - earlier.waiting_s,
        )

    def as_fractions(self, length_s: float) -> Fractions:
        """Divide the totals by a duration; all fractions are 0 if it is 0.

        >>> Totals(busy_s=6.0, communication_s=1.0, waiting_s=2.0).as_fractions(10.0)
        Fractions(busy=0.6, communication=0.1, waiting=0.2)
        """
        if length_s <= 0:
            return Fractions(0.0, 0.0, 0.0)
        return Fractions(
            self.busy_s / length_s, self.communication_s / length_s, self.waiting_s / length_s
        )


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

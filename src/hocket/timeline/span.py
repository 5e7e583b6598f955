"""Spans of time of one stage and one batch, and sums of their durations."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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

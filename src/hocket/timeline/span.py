"""What one stage did to one batch, and how the time of many such spans adds up."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

SpanKind = Literal["F", "B", "U", "T", "send", "wait"]
"""The kinds of a program's actions, and what happens between them."""

KINDS: Mapping[SpanKind, str] = {
    "F": "forward",
    "B": "backward",
    "U": "update",
    "T": "target",
    "send": "send",
    "wait": "wait",
}
"""Every kind and its name."""

ACTIONS: tuple[SpanKind, ...] = ("F", "B", "U", "T")


@dataclass(frozen=True)
class Span:
    """What one stage did to one batch, from when to when, on a clock common to all stages.

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
        """What is done, and to which batch."""
        return f"{KINDS.get(self.kind, self.kind)} {self.batch}"

    def __str__(self) -> str:
        return f"{self.name} of stage {self.stage}, {self.start_s:g} s to {self.end_s:g} s"


@dataclass(frozen=True)
class Fractions:
    """What a stage spent its time on, as parts of it; what is left over went unrecorded."""

    busy: float
    communication: float
    waiting: float


@dataclass(frozen=True)
class Totals:
    """What a stage spent its time on: actions, sends, waits."""

    busy_s: float
    communication_s: float
    waiting_s: float

    @staticmethod
    def of(seconds: Iterable[tuple[SpanKind, float]]) -> "Totals":
        """The totals of many times and what they were spent on.

        >>> Totals.of([("F", 1.0), ("wait", 0.5), ("B", 2.0)])
        Totals(busy_s=3.0, communication_s=0.0, waiting_s=0.5)
        """
        spent: dict[SpanKind, float] = defaultdict(float)
        for kind, took_s in seconds:
            spent[kind] += took_s
        return Totals(sum(spent[kind] for kind in ACTIONS), spent["send"], spent["wait"])

    def since(self, earlier: "Totals") -> "Totals":
        """What was spent after other totals of the same stage were taken."""
        return Totals(
            self.busy_s - earlier.busy_s,
            self.communication_s - earlier.communication_s,
            self.waiting_s - earlier.waiting_s,
        )

    def over(self, length_s: float) -> Fractions:
        """The totals as parts of a time; of no time, nothing.

        >>> Totals(busy_s=6.0, communication_s=1.0, waiting_s=2.0).over(10.0)
        Fractions(busy=0.6, communication=0.1, waiting=0.2)
        """
        if length_s <= 0:
            return Fractions(0.0, 0.0, 0.0)
        return Fractions(
            self.busy_s / length_s, self.communication_s / length_s, self.waiting_s / length_s
        )

"""The part of a network's forward that is one stage."""

from dataclasses import dataclass

from hocket.partition.cut_graph import CutPoint


@dataclass(frozen=True)
class StageSpan:
    """The part of a network's forward between two cut points.

    Attributes:
        begin: Cut point at which the stage begins; None for the start of the network.
        end: Cut point at which the stage ends; None for the end of the network.
    """

    begin: CutPoint | None
    end: CutPoint | None

    @property
    def split_modules(self) -> frozenset[str]:
        """Modules that this stage shares with others, because a cut is inside their forward."""
        return frozenset(
            name
            for point in (self.begin, self.end)
            if point is not None
            for name in point.callers
        )

    def __str__(self) -> str:
        begin = self.begin.name if self.begin else "the start"
        return f"the stage from {begin!r} to {self.end.name if self.end else 'the end'!r}"

"""T1 of PipeMare: learning rates divided by the staleness at first, and less and less later.

Reference: Yang et al., MLSys 2021, arXiv 1910.05124, technique 1. Plain version:
``tests/reference/pipedream.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from hocket.options.ranges import Range
from hocket.remedies.remedy import Remedy, StageInfo, StageRemedy, Weights


@dataclass(frozen=True, kw_only=True)
class T1(Remedy):
    """Multiply the learning rate of update t by S^-p with p = 1 - min(t / anneal, 1).

    S is the stage's staleness, at least 1.

    Attributes:
        anneal: Updates until the learning rate is as without the remedy; 0 for no effect.

    Raises:
        OptionError: It is no number of updates.
    """

    name: ClassVar[str] = "t1"
    paper: ClassVar[str] = "arXiv 1910.05124"
    ranges: ClassVar[Mapping[str, Range]] = {"anneal": Range(least=0)}
    slows: ClassVar[bool] = True
    anneal: int = 1000

    def attach(self, stage: StageInfo, weights: Weights) -> StageRemedy:
        """See the protocol."""
        return _Annealed(max(stage.staleness, 1.0), self.anneal)


class _Annealed(StageRemedy):
    def __init__(self, staleness: float, anneal: int) -> None:
        self._staleness = staleness
        self._anneal = anneal

    def lr_factor(self, update: int) -> float:
        """Return the factor on the learning rates of an update."""
        if update >= self._anneal:
            return 1.0
        power: float = self._staleness ** (update / self._anneal - 1)
        return power


REMEDIES = {T1.name: T1}

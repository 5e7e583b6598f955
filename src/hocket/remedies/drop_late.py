"""Gradients that are too stale are dropped.

Reference: Maranjyan, Tyurin, Richtarik, Ringmaster ASGD, ICML 2025, arXiv 2501.16168,
algorithm 4, whose R is ``limit + 1``. Plain version: ``tests/reference/pipedream.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor
from typing import ClassVar

from hocket.errors import OptionError
from hocket.options.ranges import Range
from hocket.remedies.remedy import Remedy, StageInfo, StageRemedy, Weights


@dataclass(frozen=True, kw_only=True)
class DropLate(Remedy):
    """Leave out each gradient that is more than ``limit`` updates stale.

    An update takes the mean of the others, and is skipped without any. The staleness of a
    method's batches differs where it accumulates.

    Attributes:
        limit: Largest staleness of a gradient that is applied.

    Raises:
        OptionError: It is negative.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.ones(1))
    >>> weights = Weights([weight], torch.optim.SGD([weight], lr=0.1))
    >>> stage = StageInfo(index=0, count=3, staleness=1.5)
    >>> at_stage = DropLate(limit=1).attach(stage, weights)
    >>> at_stage.takes(staleness=1), at_stage.takes(staleness=2)
    (True, False)
    """

    name: ClassVar[str] = "drop-late"
    paper: ClassVar[str] = "arXiv 2501.16168"
    ranges: ClassVar[Mapping[str, Range]] = {"limit": Range(least=0)}
    limit: int = 1

    def attach(self, stage: StageInfo, weights: Weights) -> StageRemedy:
        """See the base.

        Raises:
            OptionError: The stage would drop each gradient.
        """
        least = floor(stage.staleness)
        if least > self.limit:
            raise OptionError(
                f"stage {stage.index} of {stage.count}: each gradient is {least} or more "
                f"updates stale, and drop-late(limit={self.limit}) would drop all of them; use "
                f"limit={least} or more, fewer stages, or a method that accumulates more"
            )
        return _Limited(self.limit)


class _Limited(StageRemedy):
    def __init__(self, limit: int) -> None:
        self._limit = limit

    def takes(self, staleness: int) -> bool:
        return staleness <= self._limit


REMEDIES = {DropLate.name: DropLate}

"""T2 of PipeMare: late gradients are computed at an estimate of the weights of their forward.

Reference: Yang et al., MLSys 2021, arXiv 1910.05124, technique 2. Plain version:
``tests/reference/predict.py``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from hocket.options.ranges import Range
from hocket.remedies.remedy import Remedy, StageInfo, StageRemedy, Weights


@dataclass(frozen=True, kw_only=True)
class T2(Remedy):
    """Back-propagate at w - S d, where d is the mean change of the weights in an update.

    d is a moving average with the factor decay^(1/tau) for the past, where tau is the stage's
    mean staleness. S is the counted staleness of the batch.

    Attributes:
        decay: What is left after tau updates of a change's part in d; 0 for the last change
            alone, 1 for no effect.

    Raises:
        OptionError: It is not in this range.
    """

    name: ClassVar[str] = "t2"
    paper: ClassVar[str] = "arXiv 1910.05124"
    ranges: ClassVar[Mapping[str, Range]] = {"decay": Range(least=0, most=1)}
    moves: ClassVar[Literal["backward"]] = "backward"
    decay: float = 0.135

    @property
    def copies(self) -> int:
        """Copies of a stage's weights that it keeps between two actions."""
        return 1

    def attach(self, stage: StageInfo, weights: Weights) -> StageRemedy:
        """See the protocol."""
        return _MeanChange(self.decay ** (1 / stage.staleness), weights)


class _MeanChange(StageRemedy):
    needs_changes = True

    def __init__(self, kept: float, weights: Weights) -> None:
        self._kept = kept
        self._mean = [torch.zeros_like(weight.detach()) for weight in weights.parameters]

    def shift_for_backward(self, staleness: int) -> list[Tensor | None] | None:
        """Return the changes that lead back to the weights of a forward."""
        return [mean * -staleness for mean in self._mean]

    def observe_update(self, lrs: Sequence[float], changes: Sequence[Tensor]) -> None:
        """Add the changes of an update to their mean."""
        for mean, change in zip(self._mean, changes, strict=True):
            mean.mul_(self._kept).add_(change, alpha=1 - self._kept)

    def state_dict(self) -> dict[str, Any]:
        """Return the mean changes."""
        return {"mean": self._mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the mean changes at the same stage."""
        for mean, saved in zip(self._mean, state["mean"], strict=True):
            mean.copy_(saved)


REMEDIES = {T2.name: T2}

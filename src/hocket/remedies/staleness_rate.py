"""Learning rates divided by the staleness of the gradients of an update.

Reference: Zhang et al., IJCAI 2016, arXiv 1511.05950, equation 4. Plain version:
``tests/reference/pipedream.py``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.optim import Rprop

from hocket.errors import OptionError
from hocket.options.ranges import Range
from hocket.remedies.remedy import Remedy, StageInfo, StageRemedy, Weights


@dataclass(frozen=True, kw_only=True)
class StalenessRate(Remedy):
    """Multiply the learning rate of an update by S^-power.

    S is the mean staleness of the batches that the update takes, as it was counted, and at
    least 1.

    Attributes:
        power: 1 in the paper; 0 for no effect.

    Raises:
        OptionError: It is negative.

    An update with one gradient that is four updates old:

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.ones(1))
    >>> weights = Weights([weight], torch.optim.SGD([weight], lr=0.1))
    >>> stage = StageInfo(index=0, count=3, staleness=2.0)
    >>> at_stage = StalenessRate().attach(stage, weights)
    >>> at_stage.after_backward(staleness=4)
    >>> at_stage.lr_factor(update=0)
    0.25
    """

    name: ClassVar[str] = "staleness-rate"
    paper: ClassVar[str] = "arXiv 1511.05950"
    ranges: ClassVar[Mapping[str, Range]] = {"power": Range(least=0)}
    slows: ClassVar[bool] = True
    power: float = 1.0

    def attach(self, stage: StageInfo, weights: Weights) -> StageRemedy:
        """See the base.

        Raises:
            OptionError: The optimizer is Rprop.
        """
        if isinstance(weights.optimizer, Rprop):
            raise OptionError(
                f"stage {stage.index}: staleness-rate changes learning rates, and Rprop reads "
                "none after its first step; use another optimizer, or leave it out"
            )
        return _Counted(self.power)


class _Counted(StageRemedy):
    def __init__(self, power: float) -> None:
        self._power = power
        self._sum = self._batches = 0  # of the batches since the last update

    def after_backward(self, staleness: int) -> None:
        self._sum += staleness
        self._batches += 1

    def lr_factor(self, update: int) -> float:
        factor: float = max(self._sum / self._batches, 1.0) ** -self._power
        return factor

    def observe_update(self, lrs: Sequence[float], changes: Sequence[Tensor]) -> None:
        """Begin to count anew, after flushed updates as well."""
        self._sum = self._batches = 0

    def state_dict(self) -> dict[str, Any]:
        return {"sum": self._sum, "batches": self._batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sum, self._batches = state["sum"], state["batches"]


REMEDIES = {StalenessRate.name: StalenessRate}

"""Prediction of weights: a batch is forwarded with the weights that its gradient may well meet.

References: SpecTrain (Chen et al., arXiv 1809.02839, equation 4), XPipe (Guan et al., arXiv
1911.04610), PipeOptim (Guan et al., arXiv 2312.00839), MSNAG of FTPipe (Eliad et al., USENIX
ATC 2021) and linear weight prediction (Kosson et al., MLSys 2021, arXiv 2003.11666). Plain
version: ``tests/reference/predict.py``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from hocket.errors import OptionError
from hocket.remedies.displacement import Displace, Moments, StepsAhead, displacements_of
from hocket.remedies.remedy import Remedy, StageInfo, StageRemedy, Weights


@dataclass(frozen=True, kw_only=True)
class Predict(Remedy):
    """Forward with w + d, where d predicts the s updates until the backward of the batch.

    For SGD with momentum v this is w - s lr v (SpecTrain).

    Attributes:
        direction: ``steady``: d repeats the step of the optimizer's present moments (SpecTrain
            for SGD with momentum, XPipe and PipeOptim for Adam). ``decaying``: d is made of
            the steps that the optimizer would do with gradients of zero (MSNAG). ``last``: d
            repeats the last change of the weights, under any optimizer.

    Raises:
        OptionError: There is no such direction.

    After an update by -0.1 a batch whose backward is two updates away:

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.ones(1))
    >>> weights = Weights([weight], torch.optim.SGD([weight], lr=0.1, momentum=0.9))
    >>> stage = StageInfo(index=0, count=3, staleness=2.0)
    >>> at_stage = Predict(direction="last").attach(stage, weights)
    >>> at_stage.observe_update([0.1], [torch.tensor([-0.1])])
    >>> at_stage.shift_for_forward(due=2)
    [tensor([-0.2000])]
    """

    name: ClassVar[str] = "predict"
    paper: ClassVar[str] = "arXiv 1809.02839"
    moves: ClassVar[Literal["forward"]] = "forward"
    direction: Literal["steady", "decaying", "last"] = "steady"

    @property
    def copies(self) -> int:
        """Copies of a stage's weights that it keeps between two actions."""
        return int(self.direction == "last")

    def attach(self, stage: StageInfo, weights: Weights) -> StageRemedy:
        """See the base.

        Raises:
            OptionError: The direction needs moments that the optimizer does not have.
        """
        if self.direction == "last":
            return _LastChange(weights)
        displacements = displacements_of(weights.optimizer)
        if displacements is None:
            raise OptionError(
                f"stage {stage.index}: direction={self.direction!r} predicts weights from the "
                "moments of SGD or Muon with momentum, Adam, AdamW, NAdam or Lion, and the "
                f"optimizer is another ({type(weights.optimizer).__name__}) or has no "
                "momentum; use predict(direction=last), which needs none"
            )
        return _FromMoments(weights, displacements, self.direction)


class _LastChange(StageRemedy):
    needs_changes = True

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._changes: Sequence[Tensor] = ()  # of the last update

    def shift_for_forward(self, due: int) -> list[Tensor | None] | None:
        """Return the last change of each weight, times the updates to come."""
        if not self._changes:
            return None
        pairs = zip(self._changes, self._weights.parameters, strict=True)
        return [c * due if weight.requires_grad else None for c, weight in pairs]

    def observe_update(self, lrs: Sequence[float], changes: Sequence[Tensor]) -> None:
        self._changes = changes

    def state_dict(self) -> dict[str, Any]:
        return {"changes": list(self._changes)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pairs = zip(state["changes"], self._weights.parameters, strict=bool(state["changes"]))
        self._changes = [change.to(weight.device).clone() for change, weight in pairs]


class _FromMoments(StageRemedy):
    def __init__(
        self, weights: Weights, displacements: Sequence[Displace], moments: Moments
    ) -> None:
        self._weights = weights
        self._displacements = displacements  # of each group
        self._moments: Moments = moments
        self._lrs: list[float] | None = None  # of the last update

    def shift_for_forward(self, due: int) -> list[Tensor | None] | None:
        """Return the displacement of each weight by the updates to come."""
        if self._lrs is None:
            return None
        optimizer, found = self._weights.optimizer, {}
        groups = zip(optimizer.param_groups, self._lrs, self._displacements, strict=True)
        for group, lr, displace in groups:
            for weight in group["params"]:
                state = optimizer.state.get(weight)
                if state and weight.requires_grad:  # it has been updated, and is not frozen
                    steps = StepsAhead(weight.detach(), state, group, lr, due, self._moments)
                    found[weight] = displace(steps)
        return [found.get(weight) for weight in self._weights.parameters]

    def observe_update(self, lrs: Sequence[float], changes: Sequence[Tensor]) -> None:
        self._lrs = list(lrs)

    def state_dict(self) -> dict[str, Any]:
        return {"lrs": self._lrs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._lrs = state["lrs"]


REMEDIES = {Predict.name: Predict}

"""Spike compensation: a stale gradient is given at once the momentum that it has missed.

Reference: Kosson et al., Pipelined Backpropagation at Scale, MLSys 2021, arXiv 2003.11666.
Plain version: ``tests/reference/spike.py``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from hocket.errors import OptionError
from hocket.remedies.displacement import has_momentum
from hocket.remedies.remedy import Remedy, StageInfo, StageRemedy, Weights


@dataclass(frozen=True, kw_only=True)
class SpikeCompensation(Remedy):
    """Update by -lr (a v + b g) with a = mu^S and b = (1 - mu^S) / (1 - mu).

    v is the momentum of SGD, g the gradient of the update and S the stage's mean staleness. So
    a gradient has had at its own update as much effect as one that came S updates before.

    The first step, with a gradient of 1, is 2.71 times as long:

    >>> weight = torch.nn.Parameter(torch.ones(1))
    >>> weights = Weights([weight], torch.optim.SGD([weight], lr=0.1, momentum=0.9))
    >>> stage = StageInfo(index=0, count=3, staleness=2.0)
    >>> at_stage = SpikeCompensation().attach(stage, weights)
    >>> weight.grad = torch.ones(1)
    >>> weights.optimizer.step()  # from 1 to 0.9
    >>> at_stage.after_step([0.1])
    >>> weight.data
    tensor([0.7290])
    """

    name: ClassVar[str] = "spike-compensation"
    paper: ClassVar[str] = "arXiv 2003.11666"
    corrects: ClassVar[bool] = True

    def attach(self, stage: StageInfo, weights: Weights) -> StageRemedy:
        """See the base.

        Raises:
            OptionError: The optimizer is not SGD with plain momentum between 0 and 1.
        """
        plain = has_momentum(weights.optimizer) and all(
            group["momentum"] < 1 and not group["nesterov"] and not group["dampening"]
            for group in weights.optimizer.param_groups
        )
        if not plain:
            raise OptionError(
                f"stage {stage.index}: spike compensation is a rule for SGD with momentum, "
                "without nesterov and dampening, and the optimizer is another "
                f"({type(weights.optimizer).__name__}); use SGD:momentum=0.9, or leave "
                "spike-compensation out"
            )
        return _Spikes(stage.staleness, weights)


class _Spikes(StageRemedy):
    def __init__(self, staleness: float, weights: Weights) -> None:
        self._staleness = staleness
        self._optimizer = weights.optimizer

    @torch.no_grad()
    def after_step(self, lrs: Sequence[float]) -> None:
        """Change the step that SGD has done, -lr v, into -lr (a v + b g)."""
        for group, lr in zip(self._optimizer.param_groups, lrs, strict=True):
            if not group["momentum"]:  # as a schedule may have it: a = 0, b = 1, and v is old
                continue
            kept = group["momentum"] ** self._staleness
            spike = (1 - kept) / (1 - group["momentum"])
            for weight in (p for p in group["params"] if p.grad is not None):
                velocity = self._optimizer.state[weight]["momentum_buffer"]
                gradient = -weight.grad if group["maximize"] else weight.grad
                if group["weight_decay"]:
                    before = weight + lr * velocity
                    gradient = gradient + group["weight_decay"] * before
                weight.add_(velocity, alpha=lr * (1 - kept)).sub_(gradient, alpha=lr * spike)


REMEDIES = {SpikeCompensation.name: SpikeCompensation}

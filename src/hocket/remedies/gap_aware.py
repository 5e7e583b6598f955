"""Gap-aware gradients: smaller where a weight has moved far since the forward.

Reference: Barkai et al., Gap-aware mitigation of gradient staleness, ICLR 2020, arXiv
1909.10802. Plain version: ``tests/reference/gap_aware.py``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from hocket.errors import OptionError
from hocket.options.ranges import Range
from hocket.remedies.displacement import has_momentum
from hocket.remedies.remedy import Remedy, StageInfo, StageRemedy, Weights, dense_gradient

EPSILON = 1e-8
"""Added to the typical step over the learning rate."""


@dataclass(frozen=True, kw_only=True)
class GapAware(Remedy):
    """Divide each stale gradient by 1 + |w - v| / c, where v are the weights of its forward.

    c is a typical step of a weight: the largest learning rate so far times the root of the mean
    square of its momentum.

    Attributes:
        decay: Part of the past in that mean.

    Raises:
        OptionError: It is not from 0 to 0.9999999.

    A weight that has moved by its typical step halves its gradient:

    >>> weight = torch.nn.Parameter(torch.ones(1))
    >>> weights = Weights([weight], torch.optim.SGD([weight], lr=0.1, momentum=0.9))
    >>> stage = StageInfo(index=0, count=3, staleness=2.0)
    >>> at_stage = GapAware().attach(stage, weights)
    >>> weight.grad = torch.ones(1)
    >>> weights.optimizer.step()  # from 1 to 0.9
    >>> at_stage.observe_update([0.1], [])
    >>> at_stage.correct_gradient([torch.ones(1)])
    >>> weight.grad
    tensor([0.5000])
    """

    name: ClassVar[str] = "gap-aware"
    paper: ClassVar[str] = "arXiv 1909.10802"
    ranges: ClassVar[Mapping[str, Range]] = {"decay": Range(least=0, most=0.9999999)}
    compares: ClassVar[bool] = True
    corrects: ClassVar[bool] = True
    decay: float = 0.999
    copies = 1

    def attach(self, stage: StageInfo, weights: Weights) -> StageRemedy:
        """See the base.

        Raises:
            OptionError: The optimizer is not SGD with momentum.
        """
        if not has_momentum(weights.optimizer):
            raise OptionError(
                f"stage {stage.index}: gap-aware measures steps by the momentum of SGD, and "
                f"{type(weights.optimizer).__name__} is another optimizer or has no momentum; "
                "use SGD:momentum=0.9, or leave gap-aware out"
            )
        return _Gaps(self.decay, stage, weights)


class _Gaps(StageRemedy):
    def __init__(self, decay: float, stage: StageInfo, weights: Weights) -> None:
        self._decay = decay
        self._stage = stage.index
        self._weights = weights
        # In at least 32 bits, as others would round the small changes away.
        self._squares = [
            torch.zeros_like(w.detach(), dtype=torch.promote_types(w.dtype, torch.float32))
            for w in weights.parameters
        ]
        self._counts = [0] * len(weights.parameters)  # of momenta in each mean
        groups = weights.optimizer.param_groups
        self._group = {id(w): n for n, group in enumerate(groups) for w in group["params"]}
        self._largest_lrs = [0.0] * len(groups)

    def correct_gradient(self, forward_weights: Sequence[Tensor] | None) -> None:
        """Divide ``grad`` of each weight by its gap, in typical steps, and one."""
        if forward_weights is None:
            return
        for weight, old, mean, count in zip(
            self._weights.parameters, forward_weights, self._squares, self._counts, strict=True
        ):
            group = self._group.get(id(weight))  # the optimizer may leave out the weight
            if group is None or weight.grad is None or not count:
                continue
            if (lr := self._largest_lrs[group]) > 0:
                step = lr * ((mean / (1 - self._decay**count)).sqrt() + EPSILON)
                gap = (weight.detach() - old).abs()
                gradient = dense_gradient(weight, self._stage)
                weight.grad = (gradient / (1 + gap / step)).to(gradient.dtype)

    def observe_update(self, lrs: Sequence[float], changes: Sequence[Tensor]) -> None:
        """Average the squares of the momenta of an update."""
        self._largest_lrs = list(map(max, self._largest_lrs, lrs))
        state = self._weights.optimizer.state
        for n, weight in enumerate(self._weights.parameters):
            if weight in state:
                velocity = state[weight]["momentum_buffer"]
                if velocity.layout == torch.strided:  # `correct_gradient` refuses others
                    velocity = velocity.to(self._squares[n].dtype)
                    self._squares[n].mul_(self._decay)
                    self._squares[n].addcmul_(velocity, velocity, value=1 - self._decay)
                    self._counts[n] += 1

    def state_dict(self) -> dict[str, Any]:
        return {
            "squares": self._squares,
            "counts": list(self._counts),
            "largest_lrs": list(self._largest_lrs),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._counts, self._largest_lrs = list(state["counts"]), list(state["largest_lrs"])
        for mean, saved in zip(self._squares, state["squares"], strict=True):
            mean.copy_(saved)


REMEDIES = {GapAware.name: GapAware}

"""The three techniques of PipeMare.

Reference: Yang et al., MLSys 2021, arXiv 1910.05124. Plain versions:
``tests/reference/pipedream.py``, and ``tests/reference/predict.py`` of T2. T3 is a matter of
the program.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

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

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.ones(1))
    >>> weights = Weights([weight], torch.optim.SGD([weight], lr=0.1))
    >>> stage = StageInfo(index=0, count=3, staleness=4.0)
    >>> at_stage = T1(anneal=100).attach(stage, weights)
    >>> [at_stage.lr_factor(update) for update in (0, 50, 100)]
    [0.25, 0.5, 1.0]
    """

    name: ClassVar[str] = "t1"
    paper: ClassVar[str] = "arXiv 1910.05124"
    ranges: ClassVar[Mapping[str, Range]] = {"anneal": Range(least=0)}
    slows: ClassVar[bool] = True
    anneal: int = 1000

    def attach(self, stage: StageInfo, weights: Weights) -> StageRemedy:
        """See the base."""
        return _Annealed(max(stage.staleness, 1.0), self.anneal)


class _Annealed(StageRemedy):
    def __init__(self, staleness: float, anneal: int) -> None:
        self._staleness = staleness
        self._anneal = anneal

    def lr_factor(self, update: int) -> float:
        if update >= self._anneal:
            return 1.0
        power: float = self._staleness ** (update / self._anneal - 1)
        return power


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

    After an update by -0.1 a gradient that is two updates old:

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.ones(1))
    >>> weights = Weights([weight], torch.optim.SGD([weight], lr=0.1))
    >>> stage = StageInfo(index=0, count=3, staleness=2.0)
    >>> at_stage = T2(decay=0).attach(stage, weights)
    >>> at_stage.observe_update([0.1], [torch.tensor([-0.1])])
    >>> at_stage.shift_for_backward(staleness=2)
    [tensor([0.2000])]
    """

    name: ClassVar[str] = "t2"
    paper: ClassVar[str] = "arXiv 1910.05124"
    ranges: ClassVar[Mapping[str, Range]] = {"decay": Range(least=0, most=1)}
    moves: ClassVar[Literal["backward"]] = "backward"
    decay: float = 0.135
    copies = 1

    def attach(self, stage: StageInfo, weights: Weights) -> StageRemedy:
        """See the base."""
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
        for mean, change in zip(self._mean, changes, strict=True):
            mean.mul_(self._kept).add_(change, alpha=1 - self._kept)

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self._mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for mean, saved in zip(self._mean, state["mean"], strict=True):
            mean.copy_(saved)


@dataclass(frozen=True, kw_only=True)
class T3(Remedy):
    """Let the pipeline be empty at each of the first updates, as in back-propagation.

    A batch enters after the update with the group of ``accumulate`` batches before it. Other
    remedies are inactive at these updates, but may look at how they change the weights.

    Attributes:
        updates: Number of these updates; 0 for no effect.

    Raises:
        OptionError: It is no number of updates.

    >>> from hocket.methods import DDG
    >>> from hocket.program import format_program, unroll
    >>> method = DDG().with_remedies(T3(updates=1))
    >>> print(format_program(unroll(method, stages=2, batches=3), stages=2))
    tick | stage 0     | stage 1
       0 | F0          | F0 B0 U0
       1 | B0 U0       |
       2 | F1          | F1 B1 U1
       3 | F2 B1 U1    | F2 B2 U2
       4 | B2 U2       |
    """

    name: ClassVar[str] = "t3"
    paper: ClassVar[str] = "arXiv 1910.05124"
    ranges: ClassVar[Mapping[str, Range]] = {"updates": Range(least=0)}
    updates: int = 1000

    @property
    def flushed_updates(self) -> int:
        """First updates before each of which the pipeline is flushed."""
        return self.updates

    def attach(self, stage: StageInfo, weights: Weights) -> StageRemedy:
        """Attach nothing: the stages follow the program."""
        return StageRemedy()


REMEDIES: Mapping[str, type[Remedy]] = {T1.name: T1, T2.name: T2, T3.name: T3}

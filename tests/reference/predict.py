"""Displacements of weights under SGD with momentum, as their papers write them.

SpecTrain (arXiv 1809.02839, equation 4): s steps of the momentum v as it is. MSNAG of FTPipe
(Eliad et al., 2021): s steps with gradients of zero. Linear weight prediction (2003.11666,
weight form): s times the last change of the weights. T2 of PipeMare (1910.05124): back by s
times a moving average of the changes.
"""

from itertools import pairwise

from torch import Tensor
from torch.optim import Optimizer


def velocities(sgd: Optimizer) -> list[Tensor]:
    """Return the momentum of each weight, zeros before the first update."""
    states = [(p, sgd.state.get(p, {})) for p in sgd.param_groups[0]["params"]]
    return [state.get("momentum_buffer", state.get("buf", 0 * p.data)) for p, state in states]


def spectrain(sgd: Optimizer, s: int) -> list[Tensor]:
    lr = sgd.param_groups[0]["lr"]
    return [-lr * s * v for v in velocities(sgd)]


def msnag(sgd: Optimizer, s: int) -> list[Tensor]:
    lr, mu = (sgd.param_groups[0][name] for name in ("lr", "momentum"))
    moved = [0 * v for v in velocities(sgd)]
    for step in range(1, s + 1):
        moved = [m - lr * mu**step * v for m, v in zip(moved, velocities(sgd), strict=True)]
    return moved


class History:
    """The weights of each optimizer at every version that was asked for."""

    def __init__(self) -> None:
        self.seen: dict[Optimizer, list[list[Tensor]]] = {}

    def changes(self, sgd: Optimizer) -> list[list[Tensor]]:
        """Return the changes of the weights so far, first those of the first update."""
        history = self.seen.setdefault(sgd, [])
        now = [p.data.clone() for p in sgd.param_groups[0]["params"]]
        if not history or any((a != b).any() for a, b in zip(history[-1], now, strict=True)):
            history.append(now)
        return [
            [new - old for old, new in zip(*pair, strict=True)] for pair in pairwise(history)
        ]


class LastChange(History):
    def __call__(self, sgd: Optimizer, s: int) -> list[Tensor]:
        none = [0 * p.data for p in sgd.param_groups[0]["params"]]
        return [s * change for change in [none, *self.changes(sgd)][-1]]


class MeanChange(History):
    """T2: delta <- g delta + (1 - g) change with g = D^(1/tau), where tau is (K-1-k)/M."""

    def __init__(self, decay: float, stages: int, accumulate: int) -> None:
        super().__init__()
        self.decay, self.last, self.accumulate = decay, stages - 1, accumulate
        self.stage: dict[Optimizer, int] = {}

    def __call__(self, sgd: Optimizer, s: int) -> list[Tensor]:
        changes = self.changes(sgd)
        k = self.stage.setdefault(sgd, self.last - 1 - len(self.stage))  # the last one first
        g = self.decay ** (self.accumulate / (self.last - k))
        delta = [0 * p.data for p in sgd.param_groups[0]["params"]]
        for change in changes:
            delta = [g * d + (1 - g) * c for d, c in zip(delta, change, strict=True)]
        return [-s * d for d in delta]

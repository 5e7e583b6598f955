"""Displacements of predicted weights under SGD with momentum, as their papers write them.

SpecTrain (arXiv 1809.02839, equation 4): s steps of the momentum v as it is. MSNAG of FTPipe
(Eliad et al., 2021): s steps with gradients of zero. Linear weight prediction (2003.11666,
weight form): s times the last change of the weights.
"""

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


class LastChange:
    """Remembers the weights of each optimizer at every version."""

    def __init__(self) -> None:
        self.seen: dict[Optimizer, list[list[Tensor]]] = {}

    def __call__(self, sgd: Optimizer, s: int) -> list[Tensor]:
        history = self.seen.setdefault(sgd, [])
        now = [p.data.clone() for p in sgd.param_groups[0]["params"]]
        if not history or any((a != b).any() for a, b in zip(history[-1], now, strict=True)):
            history.append(now)
        before = history[-2] if len(history) > 1 else now
        return [s * (a - b) for a, b in zip(now, before, strict=True)]

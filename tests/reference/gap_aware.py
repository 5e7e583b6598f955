"""Gap-aware gradients (arXiv 1909.10802): divided by 1 + |w - w_old| / C, element by element.

C = lr (sqrt(mean of v v) + 1e-8), where the mean has a bias correction and v is the momentum.
"""

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from reference.predict import velocities


class GapAware:
    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.seen: dict[Optimizer, list[list[Tensor]]] = {}  # momenta of all updates

    def __call__(self, module: nn.Module, then: list[Tensor], sgd: Optimizer) -> None:
        history, now = self.seen.setdefault(sgd, []), [v.clone() for v in velocities(sgd)]
        latest = history[-1] if history else [0 * v for v in now]
        if any((a != b).any() for a, b in zip(now, latest, strict=True)):
            history.append(now)
        if not history:
            return
        for i, (p, old) in enumerate(zip(module.parameters(), then, strict=True)):
            weights = [self.decay**age for age in range(len(history))][::-1]
            mean = sum(w * v[i] ** 2 for w, v in zip(weights, history, strict=True)) / sum(
                weights
            )
            C = sgd.param_groups[0]["lr"] * (torch.sqrt(mean) + 1e-8)
            p.grad = p.grad / (1 + (p.data - old).abs() / C)

"""Displacements of a weight by later steps of its optimizer, as its moments foretell them.

``steady``: every later step is the one that the present moments make. ``decaying``: every later
gradient is zero, so that the steps become smaller.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

Moments = Literal["steady", "decaying"]
Displace: TypeAlias = Callable[
    [Tensor, Mapping[str, Any], Mapping[str, Any], float, int, Moments], Tensor
]
"""Returns the displacement of a weight (its shape), by the state that its optimizer has for it,
its group, learning rate, number of steps, and what becomes of the moments."""


def displacement_of(optimizer: Optimizer) -> Displace | None:
    """Return the function for the weights of an optimizer; None if there is none.

    Subclasses may step otherwise, so they have none.
    """
    if has_momentum(optimizer):
        return _displace_sgd
    return _displace_adam if type(optimizer) in (Adam, AdamW) else None


def has_momentum(optimizer: Optimizer) -> bool:
    """Return whether an optimizer is SGD with momentum in all of its groups."""
    return type(optimizer) is SGD and all(g["momentum"] for g in optimizer.param_groups)


def _displace_sgd(
    weight: Tensor,
    state: Mapping[str, Any],
    group: Mapping[str, Any],
    lr: float,
    steps: int,
    moments: Moments,
) -> Tensor:
    """Displace by -lr * v for each step (SpecTrain), or by -lr * mu^j * v (MSNAG)."""
    factor = float(steps)
    if moments == "decaying":
        first = 1 + bool(group["nesterov"])  # which looks one step further itself
        factor = float(sum(group["momentum"] ** (first + j) for j in range(steps)))
    velocity: Tensor = state["momentum_buffer"]
    return velocity * (-lr * factor)


def _displace_adam(
    weight: Tensor,
    state: Mapping[str, Any],
    group: Mapping[str, Any],
    lr: float,
    steps: int,
    moments: Moments,
) -> Tensor:
    """Displace by the steps of Adam (XPipe), or by those of its decaying moments."""
    beta1, beta2 = group["betas"]
    done = float(state["step"])
    largest = group["amsgrad"]
    first = _as_real(state["exp_avg"])
    second = _as_real(state["max_exp_avg_sq" if largest else "exp_avg_sq"])

    def step(later: int, decays: bool) -> Tensor:
        """Return the step that is done when the optimizer has done so many more."""
        kept1 = beta1**later if decays else 1.0
        kept2 = beta2**later if decays and not largest else 1.0
        numerator = first * (lr * kept1 / (1 - beta1 ** (done + later)))
        root = second.sqrt() * (kept2 / (1 - beta2 ** (done + later))) ** 0.5
        quotient: Tensor = numerator / (root + group["eps"])
        return quotient

    if moments == "steady":
        moved = step(0, decays=False) * -steps
    else:
        shrink = 1.0
        if group["decoupled_weight_decay"]:
            shrink -= lr * group["weight_decay"]
        moved = torch.zeros_like(first)
        for later in range(1, steps + 1):
            moved = moved * shrink - step(later, decays=True)
        moved += _as_real(weight) * (shrink**steps - 1)
    return torch.view_as_complex(moved) if weight.is_complex() else moved


def _as_real(tensor: Tensor) -> Tensor:
    """Return a tensor (...) of real numbers; of complex ones (..., 2), as Adam counts them."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor

"""Displacements of a weight by later steps of its optimizer, as its moments foretell them.

``steady``: every later step is the one that the present moments make. ``decaying``: every later
gradient is zero, so that the steps become smaller.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Muon, NAdam, Optimizer

Moments = Literal["steady", "decaying"]


@dataclass(frozen=True, eq=False)
class StepsAhead:
    """Steps of an optimizer that a weight has before it.

    Attributes:
        weight: The weight.
        state: State that the optimizer has for it.
        group: Its group of the optimizer.
        lr: Learning rate of each step.
        steps: Number of steps.
        moments: ``steady`` or ``decaying``.
    """

    weight: Tensor
    state: Mapping[str, Any]
    group: Mapping[str, Any]
    lr: float
    steps: int
    moments: Moments


Displace: TypeAlias = Callable[[StepsAhead], Tensor]
"""Returns the displacement of a weight by the steps before it, of its shape."""


def displacements_of(optimizer: Optimizer) -> list[Displace] | None:
    """Return the function for the weights of each group; None if one of them has none.

    Subclasses may step otherwise, so they have none.
    """
    found = []
    for group in optimizer.param_groups:
        kind, joined = type(optimizer), cast(Any, optimizer)
        # One that leaves its groups to others; a subclass that only inherits that may have
        # another step.
        if "class_of" in vars(kind):
            kind = joined.class_of(group)
        displace = _DISPLACEMENTS.get(kind)
        if f"{kind.__module__}.{kind.__qualname__}" in LIONS:
            # Not variants in which a step depends on more than the moments.
            cautious = group.get("caution", False) or group.get("cautious_factor", 1.0) != 1.0
            plain = not cautious and not getattr(optimizer, "decoupled_wd", False)
            displace = _displace_lion if plain else None
        if displace is None or not group.get("momentum", True):
            return None
        found.append(displace)
    return found


def has_momentum(optimizer: Optimizer) -> bool:
    """Return True if an optimizer is SGD with momentum in all of its groups."""
    return type(optimizer) is SGD and all(g["momentum"] for g in optimizer.param_groups)


def _displace_sgd(ahead: StepsAhead) -> Tensor:
    """Displace by -lr * v for each step (SpecTrain), or by -lr * mu^j * v (MSNAG)."""
    group, factor = ahead.group, float(ahead.steps)
    if ahead.moments == "decaying":
        first = 1 + bool(group["nesterov"])  # which looks one step further itself
        factor = float(sum(group["momentum"] ** (first + j) for j in range(ahead.steps)))
    velocity: Tensor = ahead.state["momentum_buffer"]
    return velocity * (-ahead.lr * factor)


def _displace_adam(ahead: StepsAhead) -> Tensor:
    """Displace by the steps of Adam (XPipe), or by steps with decaying moments."""
    state, group, lr = ahead.state, ahead.group, ahead.lr
    beta1, beta2 = group["betas"]
    done = float(state["step"])
    largest = group["amsgrad"]
    first = _as_real(state["exp_avg"])
    second = _as_real(state["max_exp_avg_sq" if largest else "exp_avg_sq"])

    def step(later: int, decays: bool) -> Tensor:
        """Return the step that is done when the optimizer has done so many more."""
        kept1 = beta1**later if decays else 1.0
        kept2 = beta2**later if decays and not largest else 1.0
        root = second.sqrt().mul_((kept2 / (1 - beta2 ** (done + later))) ** 0.5)
        numerator = first * (lr * kept1 / (1 - beta1 ** (done + later)))
        quotient: Tensor = numerator.div_(root.add_(group["eps"]))
        return quotient

    if ahead.moments == "steady":
        return _as_type_of(ahead.weight, step(0, decays=False).mul_(-ahead.steps))
    return _add_decaying(ahead, partial(step, decays=True))


def _displace_nadam(ahead: StepsAhead) -> Tensor:
    """Displace by the steps of NAdam; a steady gradient is its first moment.

    Dozat, 2016; the momentum of a step and the products of momenta are as in PyTorch.
    """
    state, group, lr = ahead.state, ahead.group, ahead.lr
    beta1, beta2 = group["betas"]
    done = float(state["step"])
    product = state["mu_product"].to("cpu", copy=True)  # rounds as the optimizer's does
    first, second = _as_real(state["exp_avg"]), _as_real(state["exp_avg_sq"])

    def momentum(number: float) -> float:
        return float(beta1 * (1 - 0.5 * 0.96 ** (number * group["momentum_decay"])))

    def of_momentum(number: float) -> float:
        """Return the factor of the first moment in a step."""
        coming = momentum(number + 1)
        return coming / (1 - float(product) * coming)

    def quotient(number: float, factor: float, kept: float) -> Tensor:
        root = second.sqrt() * (kept / (1 - beta2**number)) ** 0.5
        found: Tensor = first * (lr * factor) / (root + group["eps"])
        return found

    def step(later: int) -> Tensor:
        number = done + later
        product.mul_(momentum(number))
        return quotient(number, beta1**later * of_momentum(number), beta2**later)

    if ahead.moments == "steady":
        of_gradient = (1 - momentum(done)) / (1 - float(product))
        steady = quotient(done, of_gradient + of_momentum(done), 1.0)
        return _as_type_of(ahead.weight, steady * -ahead.steps)
    return _add_decaying(ahead, step)


def _displace_muon(ahead: StepsAhead) -> Tensor:
    """Displace by steps of Muon, which stay as large as they are when its momentum decays."""
    options = ("ns_coefficients", "eps", "ns_steps", "adjust_lr_fn")
    moved = nn.Parameter(torch.zeros_like(ahead.weight))
    moved.grad = ahead.state["momentum_buffer"].clone()
    rule = {name: ahead.group[name] for name in options}
    Muon([moved], lr=ahead.lr, weight_decay=0.0, momentum=0.0, nesterov=False, **rule).step()
    change = moved.detach()
    if ahead.moments == "steady":
        return change * ahead.steps
    return _add_decaying(ahead, lambda later: -change)


def _displace_lion(ahead: StepsAhead) -> Tensor:
    """Displace by steps of Lion, whose size is the rate however small the momentum is.

    Chen et al., arXiv 2302.06675, algorithm 2, with gradients that have the momentum's signs.
    """
    change = _as_real(ahead.state["exp_avg"]).sign() * -ahead.lr
    if ahead.moments == "steady":
        return _as_type_of(ahead.weight, change * ahead.steps)
    return _add_decaying(ahead, lambda later: -change)


def _add_decaying(ahead: StepsAhead, step: Callable[[int], Tensor]) -> Tensor:
    """Add up steps between which the weight decays, if its decay is decoupled.

    Args:
        ahead: The steps.
        step: Returns the step that is done as the first, the second and so on, of real numbers,
            and is called in this order.
    """
    weight, group = _as_real(ahead.weight), ahead.group
    decoupled = group.get("decoupled_weight_decay", True)  # always, of Muon and Lion
    kept = 1 - (ahead.lr * group["weight_decay"] if decoupled else 0.0)
    moved = torch.zeros_like(weight)
    for later in range(1, ahead.steps + 1):
        moved = moved * kept - step(later)
    return _as_type_of(ahead.weight, moved + weight * (kept**ahead.steps - 1))


def _as_real(tensor: Tensor) -> Tensor:
    """Return a tensor (...) of real numbers; of complex ones (..., 2), as Adam counts them."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _as_type_of(weight: Tensor, moved: Tensor) -> Tensor:
    """Return real numbers in the type of the weight, maybe complex; inverts `_as_real`."""
    return torch.view_as_complex(moved) if weight.is_complex() else moved


_DISPLACEMENTS: Mapping[type[Optimizer], Displace] = {
    SGD: _displace_sgd,
    Adam: _displace_adam,
    AdamW: _displace_adam,
    NAdam: _displace_nadam,
    Muon: _displace_muon,
}
LIONS = frozenset(["lion_pytorch.lion_pytorch.Lion", "timm.optim.lion.Lion"])
"""Lion in other libraries, as PyTorch has none."""

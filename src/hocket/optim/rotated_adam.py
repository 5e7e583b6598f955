"""Adam in the eigenbases of a matrix's gradients, which bears late gradients better.

Jung, Shin, Lee, ICML 2026, arXiv 2602.03515, algorithms 1 and 2, with covariances of gradients
on both sides (``2nd`` and ``bi`` of the authors' code); the same as SOAP (Vyas et al., arXiv
2409.11321) but for details. Plain version: ``tests/reference/rotated_adam.py``.
"""

# Shapes: M rows, N columns.

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hocket.optim.factory import NamedParameters, OptimizerFactory
from hocket.optim.muon import require_hidden_matrices

_SIDES = ("left", "right")


class RotatedAdam(Optimizer):
    """Adam with decoupled weight decay, for matrices in a basis that turns with the gradients.

    Args:
        params: Matrices, or groups of weights; groups with ``rotated=False``, whose weights may
            have any shape, are trained with AdamW.
        lr: Learning rate.
        betas: Decay rates of both moments; the covariances use the second one, too.
        eps: Term added to denominators.
        weight_decay: Decoupled weight decay.
        refresh: Updates from one turn of the bases to the next, at least 1.

    Raises:
        ValueError: A weight is complex, one to be rotated is no matrix, or an option is out of
            range.
    """

    def __init__(
        self,
        params: Sequence[nn.Parameter] | Sequence[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.95, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        refresh: int = 10,
    ) -> None:
        in_range = all(value >= 0 for value in (lr, eps, weight_decay))
        if not in_range or len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError("lr, eps and weight_decay are at least 0, and two betas in [0, 1)")
        if not isinstance(refresh, int) or refresh < 1:
            raise ValueError(f"refresh is {refresh}; bases turn after 1 update or more")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults | {"refresh": refresh, "rotated": True})
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.is_complex():
                    raise ValueError("a weight is complex; AdamW and others train such weights")
                if group["rotated"] and weight.dim() != 2:
                    raise ValueError(
                        f"a weight of shape {tuple(weight.shape)} is no matrix, and only "
                        "those are rotated; give it in a group with rotated=False"
                    )

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        """Do one step with the gradients of the weights that have one.

        A closure computes them first; its loss is returned.
        """
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, weight.grad, group)
        return loss

    def _update(self, weight: nn.Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[weight], group["betas"]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device="cpu")
            state["exp_avg"] = torch.zeros_like(weight)
            state["exp_avg_sq"] = torch.zeros_like(weight)
            if group["rotated"]:
                for side, size in zip(_SIDES, weight.shape, strict=True):
                    state[f"{side}_covariance"] = weight.new_zeros(size, size)
        state["step"] += 1
        done = int(state["step"])
        if group["rotated"]:
            # The covariances of rows and of columns, as moving averages.
            products = (gradient @ gradient.T, gradient.T @ gradient)
            for side, product in zip(_SIDES, products, strict=True):
                state[f"{side}_covariance"].lerp_(product, 1 - beta2)
            if "left_basis" not in state or done % group["refresh"] == 0:
                _turn_bases(state)
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        turned = _rotate(gradient, state)
        state["exp_avg_sq"].mul_(beta2).addcmul_(turned, turned, value=1 - beta2)
        root = state["exp_avg_sq"].sqrt().div_((1 - beta2**done) ** 0.5)
        change = _rotate(state["exp_avg"], state) / root.add_(group["eps"])
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.add_(_rotate(change, state, back=True), alpha=-group["lr"] / (1 - beta1**done))


def _turn_bases(state: dict[str, Any]) -> None:
    """Set each basis to eigenvectors of the covariance, the largest eigenvalue first.

    Later a basis does a step of the power iteration, and the second moments of coordinates are
    put into the new order.
    """
    for dim, side in enumerate(_SIDES):
        covariance, basis = state[f"{side}_covariance"], state.get(f"{side}_basis")
        if basis is None:
            turned = torch.linalg.eigh(_at_least_float32(covariance)).eigenvectors.flip(1)
            state[f"{side}_basis"] = turned.to(covariance.dtype).contiguous()
            continue
        estimates = (basis * (covariance @ basis)).sum(0)
        order = estimates.argsort(descending=True, stable=True)
        state["exp_avg_sq"].copy_(state["exp_avg_sq"].index_select(dim, order))
        turned = _at_least_float32(covariance @ basis[:, order])
        state[f"{side}_basis"] = torch.linalg.qr(turned).Q.to(covariance.dtype)


def _at_least_float32(matrix: Tensor) -> Tensor:
    """Return a matrix in a precision, of its shape, in which it can be factorized."""
    return matrix.to(torch.promote_types(matrix.dtype, torch.float32))


def _rotate(tensor: Tensor, state: dict[str, Any], *, back: bool = False) -> Tensor:
    """Return a matrix (M, N) in the bases of its weight, or back; itself if it has none."""
    if "left_basis" not in state:
        return tensor
    left, right = state["left_basis"], state["right_basis"]
    turned: Tensor = left @ tensor @ right.T if back else left.T @ tensor @ right
    return turned


def rotated_adam(
    network: nn.Module, group: Callable[[list[nn.Parameter]], Any] = list, **options: Any
) -> OptimizerFactory:
    """Return a function that builds a stage's optimizer, for ``Trainer(optimizer=)``.

    Args:
        network: The network, whose hidden matrices are rotated (`hidden_matrices`).
        group: Makes groups of the other weights, for decay of some of them.
        options: Options of `RotatedAdam`.

    Raises:
        OptionError: The network has no hidden matrix, or weights without a shape yet.
    """
    hidden = require_hidden_matrices(network, "RotatedAdam")

    def build(named_parameters: NamedParameters) -> RotatedAdam:
        matrices = [p for name, p in named_parameters if name in hidden]
        others = group([p for name, p in named_parameters if name not in hidden])
        if others and not isinstance(others[0], dict):
            others = [{"params": others}]
        groups: list[dict[str, Any]] = [{"params": matrices}] if matrices else []
        groups += [{**each, "rotated": False} for each in others]
        return RotatedAdam(groups, **options)

    return build

"""Three linearizations of a late gradient, done the slow and obvious way.

stash: weights and activations of the batch's forward (one deep copy of the module per batch).
live: activations of the forward, current weights (code of arXiv 1804.10574, 1906.09108).
recompute: the old input through the current module (FR, arXiv 1807.04511; DSP, 1909.02625).
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor], Tensor]
Batches = list[tuple[Tensor, Tensor]]
Kept = tuple[nn.Module, Tensor, Tensor | None]  # module of the forward, its input, its output


class LiveSGD(torch.optim.SGD):
    """SGD's formula through ``.data``: graphs still waiting see the new weights, unchecked."""

    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                g = p.grad.add(p.data, alpha=group["weight_decay"])
                if group["momentum"]:
                    g = g + group["momentum"] * self.state[p].get("buf", 0.0)
                    self.state[p]["buf"] = g
                p.data.add_(g, alpha=-group["lr"])


def leaf(x: Tensor) -> Tensor:  # a detached copy that gets a gradient
    return x.detach().clone().requires_grad_(x.is_floating_point())


def descend(sgd: torch.optim.Optimizer, value: Tensor) -> float:
    """Step down the gradient of a loss; return the loss."""
    sgd.zero_grad()
    value.backward()
    sgd.step()
    return value.item()


def forward(module: nn.Module, x: Tensor, linearize: str) -> tuple[Tensor, Kept]:
    """Return the output for the next module, and what this one keeps for its backward."""
    x, runner = leaf(x), copy.deepcopy(module) if linearize == "stash" else module
    with torch.set_grad_enabled({"stash": True, "live": True, "recompute": False}[linearize]):
        out = runner(x)
    if runner is not module:
        for buffer, copied in zip(module.buffers(), runner.buffers(), strict=True):
            buffer.copy_(copied)  # BatchNorm statistics live on in the real module
    return out.detach().clone(), (runner, x, None if linearize == "recompute" else out)


def backward(module: nn.Module, kept: Kept, g: Tensor) -> Tensor | None:
    """Add the batch's gradients to those of ``module``; return the gradient of its input."""
    runner, x, out = kept
    if out is None:  # statistics count once; put back last, as the backward checks versions
        saved = [b.clone() for b in module.buffers()]
        module(x).backward(g)
        for b, before in zip(module.buffers(), saved, strict=True):
            b.copy_(before)
    else:
        out.backward(g)
    if runner is not module:
        for p, q in zip(module.parameters(), runner.parameters(), strict=True):
            p.grad = q.grad if p.grad is None else p.grad + q.grad
    return x.grad

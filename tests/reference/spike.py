"""Spike compensation (arXiv 2003.11666): SGD that knows how late gradients are.

v <- mu v + g; w <- w - lr (a v + b g) with a = mu^D and b = (1 - mu^D) / (1 - mu).
"""

import torch


class SpikeSGD(torch.optim.SGD):
    """Steps through ``.data``: graphs still waiting see the new weights, unchecked."""

    def __init__(self, params, lr, momentum, *, weight_decay, delay) -> None:
        super().__init__(params, lr, momentum, weight_decay=weight_decay)
        self.delay = delay

    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            mu = group["momentum"]
            a, b = mu**self.delay, (1 - mu**self.delay) / (1 - mu)
            for p in (p for p in group["params"] if p.grad is not None):
                g = p.grad + group["weight_decay"] * p.data
                v = mu * self.state[p].get("momentum_buffer", 0.0) + g
                self.state[p]["momentum_buffer"] = v
                p.data.sub_(group["lr"] * (a * v + b * g))

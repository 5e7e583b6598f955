"""Loops written by hand for one method each: the work of its stages and nothing else.

They check nothing, seed nothing and cannot be resumed. A training by an engine leaves the same
weights, to the bit.
"""

import copy
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn, optim

from benchmarks.harness.workload import Step
from hocket.signals.losses import cross_entropy
from hocket.stage.stage import Stage

BuildOptimizer = Callable[[list[nn.Parameter]], optim.Optimizer]


class DelayedStage:
    """A stage whose gradients come late and are applied at the weights of the forward."""

    def __init__(self, module: nn.Module, build_optimizer: BuildOptimizer) -> None:
        self._module = module
        self._parameters = list(module.parameters())
        self._names = [name for name, _ in module.named_parameters()]
        self._optimizer = build_optimizer(self._parameters)
        self._in_flight: deque[tuple[Tensor, Tensor, list[Tensor]]] = deque()
        self._weights: list[Tensor] = []  # copies of the present version

    def forward(self, received: Tensor, *, differentiable: bool) -> Tensor:
        """Forward a batch (B, ...); return the output (B, ...) without its graph."""
        leaf = received.detach().requires_grad_(differentiable)
        if not self._weights:
            self._weights = [p.detach().clone().requires_grad_() for p in self._parameters]
        weights = dict(zip(self._names, self._weights, strict=True))
        output: Tensor = torch.func.functional_call(self._module, weights, (leaf,))
        self._in_flight.append((leaf, output, self._weights))
        return output.detach()

    def backward(self, gradient: Tensor) -> Tensor | None:
        """Back-propagate the oldest batch, update, and return the gradient of its input."""
        leaf, output, weights = self._in_flight.popleft()
        wanted = [leaf, *weights] if leaf.requires_grad else weights
        gradients = list(torch.autograd.grad(output, wanted, gradient))
        of_input = gradients.pop(0) if leaf.requires_grad else None
        for parameter, of_weight in zip(self._parameters, gradients, strict=True):
            parameter.grad = of_weight
        self._optimizer.step()
        self._weights = []
        return of_input


class LastStage:
    """The stage that knows the loss, and so waits for no gradient."""

    def __init__(self, module: nn.Module, build_optimizer: BuildOptimizer) -> None:
        self._module = module
        self._optimizer = build_optimizer(list(module.parameters()))

    def train(self, received: Tensor, targets: Tensor) -> tuple[Tensor, float]:
        """Forward and back-propagate a batch, and update.

        Args:
            received: Output (B, ...) of the stage before.
            targets: Targets (B,).

        Returns:
            The gradient (B, ...) of what was received, and the loss.
        """
        leaf = received.detach().requires_grad_()
        loss = cross_entropy(self._module(leaf), targets)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        assert leaf.grad is not None
        return leaf.grad, loss.item()


def delayed_step(
    modules: Sequence[nn.Module],
    build_optimizer: BuildOptimizer,
    batch: tuple[Tensor, Tensor],
) -> Step:
    """Build a step of FDG, backward-first and linearized at the weights of the forward.

    Every packet takes one step to the next stage, and one to the stage before (arXiv
    1906.09108, algorithm 1). The loss belongs to the batch that reaches the last stage.
    """
    inputs, targets = batch
    count = len(modules)
    stages = [DelayedStage(module, build_optimizer) for module in modules[:-1]]
    last = LastStage(modules[-1], build_optimizer)
    to_next: list[Tensor | None] = [None] * count
    to_previous: list[Tensor | None] = [None] * count

    def step() -> float | None:
        nonlocal to_next, to_previous
        to_next[0] = inputs
        sent: list[Tensor | None] = [None] * count
        returned: list[Tensor | None] = [None] * count
        for k, stage in enumerate(stages):
            gradient, received = to_previous[k], to_next[k]
            if gradient is not None:
                returned[k - 1] = stage.backward(gradient)
            if received is not None:
                sent[k + 1] = stage.forward(received, differentiable=k > 0)
        received, value = to_next[-1], None
        if received is not None:
            returned[-2], value = last.train(received, targets)
        to_next, to_previous = sent, returned
        return value

    return step


def local_step(
    modules: Sequence[nn.Module],
    heads: Sequence[nn.Module],
    build_optimizer: BuildOptimizer,
    batch: tuple[Tensor, Tensor],
) -> Step:
    """Build a step of DGL: every stage learns from its local loss (arXiv 1901.08164).

    The head of the last stage returns its input.
    """
    inputs, targets = batch
    optimizers = [
        build_optimizer([*module.parameters(), *head.parameters()])
        for module, head in zip(modules, heads, strict=True)
    ]

    def step() -> float:
        values, loss = inputs, torch.zeros(())
        for module, head, optimizer in zip(modules, heads, optimizers, strict=True):
            values = module(values.detach())
            loss = cross_entropy(head(values), targets)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        return loss.item()

    return step


def step_by_hand(
    stages: Sequence[Stage], build_optimizer: BuildOptimizer, batch: tuple[Tensor, Tensor]
) -> Step:
    """Build a step by hand for copies of stages that wait for gradients, or have heads.

    Args:
        stages: Stages of a new trainer.
        build_optimizer: Builds the optimizer of a stage.
        batch: Inputs (B, ...) and targets (B,), the same in each step.
    """
    modules: list[Any] = [copy.deepcopy(stage.module) for stage in stages]
    if stages[0].core.parts.signal.needs_gradient:
        return delayed_step(modules, build_optimizer, batch)
    heads = [copy.deepcopy(stage.signal_network) for stage in stages]
    return local_step(modules, heads, build_optimizer, batch)

"""Replicas of the modules of FDG or ADL, whose sums are late or whose weights meet rarely.

Late sums: the gradient that all replicas have added up for update t is applied in update
t + delay (Pipe-SGD, arXiv 1811.03619). Rare meetings: local SGD (arXiv 1805.09767, algorithm
1), DiLoCo (arXiv 2311.08105, algorithm 1) and Streaming DiLoCo (arXiv 2501.18512, algorithm 2).
With one module there is no delay between modules: data parallelism.
"""

from typing import Any

import torch
from torch import Tensor, nn

from reference._linearize import Batches, Loss, backward, forward, leaf


class Outer:
    """Outer steps on all replicas of a module; with overlap each keeps half of its weights."""

    def __init__(
        self,
        replicas: list[nn.Module],
        *,
        every: int,
        outer_lr: float,
        outer_momentum: float,
        fragments: int,
        overlap: int,
    ) -> None:
        self.every, self.fragments, self.overlap = every, fragments, overlap
        self.weights = [list(module.parameters()) for module in replicas]
        self.common = [nn.Parameter(w.detach().clone()) for w in self.weights[0]]
        how = {"momentum": outer_momentum, "nesterov": outer_momentum > 0}
        self.sgd = [torch.optim.SGD([w], outer_lr, **how) for w in self.common]
        self.arriving, self.apart = {}, [False] * fragments

    def numbers(self, fragment: int) -> range:
        return range(fragment, len(self.common), self.fragments)

    def send(self, fragment: int) -> dict[int, Tensor]:
        ways = {}
        for i in self.numbers(fragment):
            ways[i] = sum(self.common[i].detach() - own[i].detach() for own in self.weights)
            ways[i] = ways[i] / len(self.weights)
        return ways

    @torch.no_grad()
    def apply(self, fragment: int, ways: dict[int, Tensor], half: bool) -> None:
        for i, way in ways.items():
            self.common[i].grad = way
            self.sgd[i].step()
            for own in self.weights:
                new = self.common[i]
                own[i].copy_(0.5 * own[i] + 0.5 * new if half else new)
        self.apart[fragment] = half

    def after(self, updates: int) -> None:
        self.apart = [True] * self.fragments
        for f in range(self.fragments):
            if f in self.arriving and self.arriving[f][0] == updates:
                self.apply(f, self.arriving.pop(f)[1], half=True)
            if updates % self.every == (f + 1) * self.every // self.fragments % self.every:
                if self.overlap:
                    self.arriving[f] = updates + self.overlap, self.send(f)
                else:
                    self.apply(f, self.send(f), half=False)

    def finish(self) -> None:
        for f in range(self.fragments):
            if f in self.arriving:
                self.apply(f, self.arriving.pop(f)[1], half=True)
            if self.apart[f]:
                self.apply(f, self.send(f), half=False)


class Updates:
    """Updates of all replicas of one module."""

    def __init__(
        self,
        replicas: list[nn.Module],
        *,
        delay: int,
        meet: dict[str, Any] | None,
        accumulate: int,
        **options: float,
    ) -> None:
        self.replicas, self.delay, self.accumulate = replicas, delay, accumulate
        self.sgd = [torch.optim.SGD(module.parameters(), **options) for module in replicas]
        self.outer = None if meet is None else Outer(replicas, **meet)
        self.sums, self.count, self.done, self.waiting = None, 0, 0, []

    def learn(self, *, last: bool) -> None:
        """Take the gradients of one batch from all replicas; perhaps update."""
        grads = [[p.grad for p in module.parameters()] for module in self.replicas]
        if self.outer is None:
            total = [sum(each) for each in zip(*grads, strict=True)]
            grads = [total for _ in self.replicas]
        for module in self.replicas:
            module.zero_grad()
        self.sums = grads if self.sums is None else [
            [a + b for a, b in zip(*pair, strict=True)]
            for pair in zip(self.sums, grads, strict=True)
        ]  # fmt: skip
        self.count += 1
        if self.count == self.accumulate or last:
            self.waiting.append([[g / self.count for g in own] for own in self.sums])
            self.sums, self.count = None, 0
            if len(self.waiting) > self.delay:
                self.step()

    def step(self) -> None:
        for module, sgd, own in zip(self.replicas, self.sgd, self.waiting.pop(0), strict=True):
            for p, g in zip(module.parameters(), own, strict=True):
                p.grad = g.clone()
            sgd.step()
            sgd.zero_grad()
        self.done += 1
        if self.outer is not None:
            self.outer.after(self.done)

    def finish(self) -> None:
        while self.waiting:
            self.step()
        if self.outer is not None:
            self.outer.finish()


def train(
    replicas: list[list[nn.Module]],
    batches: Batches,
    *,
    loss: Loss,
    accumulate: int = 1,
    delay: int = 0,
    meet: dict[str, Any] | None = None,
    **options: float,  # of SGD
) -> None:
    """Train ``replicas[r][k]``, module k of replica r, in place until nothing is left."""
    R, K, N = len(replicas), len(replicas[0]), len(batches)
    updates = [
        Updates(
            [modules[k] for modules in replicas],
            delay=delay,
            meet=meet,
            accumulate=accumulate,
            **options,
        )
        for k in range(K)
    ]
    h, y, g, kept, share = {}, {}, {}, {}, {}  # of replica r, module k (from 1), batch b
    for b, (inputs, targets) in enumerate(batches, 1):
        for r in range(R):
            own = slice(len(inputs) * r // R, len(inputs) * (r + 1) // R)
            h[r, 0, b], y[r, b] = inputs[own], targets[own]
            share[r, b] = 1.0 if meet else len(inputs[own]) / len(inputs)
    for t in range(1, N + 2 * K - 1):
        for k in range(1, K):
            f, b = t - k + 1, t - 2 * K + k + 1
            for action in "BF":
                for r, modules in enumerate(replicas):
                    module = modules[k - 1]
                    if action == "F" and 1 <= f <= N:
                        h[r, k, f], kept[r, k, f] = forward(module, h[r, k - 1, f], "stash")
                    if action == "B" and 1 <= b <= N:
                        g[r, k - 1, b] = backward(module, kept.pop((r, k, b)), g[r, k, b])
                if action == "B" and 1 <= b <= N:
                    updates[k - 1].learn(last=b == N)
        f = t - K + 1
        if 1 <= f <= N:
            for r, modules in enumerate(replicas):
                x = leaf(h[r, K - 1, f])
                value = loss(modules[-1](x), y[r, f])
                value.backward(torch.full_like(value, share[r, f]))
                g[r, K - 1, f] = x.grad
            updates[-1].learn(last=f == N)
    for each in updates:
        each.finish()

"""Data parallelism that communicates once in several steps: local SGD and DiLoCo."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.optim import SGD

from benchmarks.harness.workload import Workload
from benchmarks.peers.baseline import PreparedTraining


@dataclass(frozen=True)
class LocalUpdates:
    """Processes that train alone for some steps, and then make one common outer step.

    The outer gradient is the mean over processes of the way that the weights have gone. With
    an outer learning rate of 1 and no momentum, the outer step sets the weights to their mean:
    local SGD (Stich, arXiv 1805.09767, algorithm 1). With Nesterov momentum it is DiLoCo
    (Douillard et al., arXiv 2311.08105, algorithm 1). The state of the inner optimizer and the
    buffers of the network stay those of each process, as in both papers.

    Attributes:
        processes: Processes that share a batch.
        threads: PyTorch threads in each process.
        steps: Inner steps between two outer ones, H.
        outer_lr: Learning rate of the outer step.
        outer_momentum: Nesterov momentum of the outer step; 0 for none.
    """

    processes: int
    threads: int
    steps: int
    outer_lr: float = 1.0
    outer_momentum: float = 0.0

    def describe(self) -> dict[str, Any]:
        """Return the settings of the outer step."""
        return {
            "steps": self.steps,
            "outer_lr": self.outer_lr,
            "outer_momentum": self.outer_momentum,
        }

    def prepare(self, workload: Workload, rank: int) -> PreparedTraining:
        """Prepare the whole network on this process's share of the batch."""
        network = workload.build_network()
        inputs, targets = (part.chunk(self.processes)[rank] for part in workload.noise_batch())
        inner_step = workload.loop_step(network, (inputs, targets))
        outer = self.outer_step(list(network.parameters()))

        def step() -> float | None:
            loss = inner_step()
            outer.after_inner_step()
            return loss

        return PreparedTraining(step, workload.batch, dict(network.named_parameters()))

    def outer_step(self, weights: Sequence[nn.Parameter]) -> "OuterStep":
        """Return the outer step for the weights of this process."""
        return OuterStep(weights, self.steps, self.outer_lr, self.outer_momentum)


class OuterStep:
    """Outer step of one process, in a process group of all that train together.

    Args:
        weights: Weights of the process, the same in all of them at the beginning.
        steps: Inner steps between two outer ones.
        lr: Learning rate.
        momentum: Nesterov momentum; 0 for none.
    """

    def __init__(
        self, weights: Sequence[nn.Parameter], steps: int, lr: float, momentum: float
    ) -> None:
        self._weights = weights
        self._steps = steps
        self._done = 0
        self._common = nn.Parameter(self._flat())  # at the last outer step
        self._optimizer = SGD([self._common], lr, momentum=momentum, nesterov=momentum > 0)

    @torch.no_grad()
    def after_inner_step(self) -> None:
        """Make the outer step if it is time, which all processes make together."""
        self._done += 1
        if self._done % self._steps:
            return
        way = self._common - self._flat()
        distributed.all_reduce(way)
        self._common.grad = way / distributed.get_world_size()
        self._optimizer.step()
        sizes = [weight.numel() for weight in self._weights]
        for weight, values in zip(self._weights, self._common.split(sizes), strict=True):
            weight.copy_(values.view_as(weight))

    def _flat(self) -> Tensor:
        """Return all weights as one vector (N,)."""
        return torch.cat([weight.detach().reshape(-1) for weight in self._weights])

"""Data parallelism that communicates once in several steps: local SGD and DiLoCo."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.optim import SGD, Optimizer

from benchmarks.harness.workload import Workload
from benchmarks.peers.baseline import PreparedTraining, network_state, share_of_batches
from hocket.signals.losses import cross_entropy


@dataclass(frozen=True)
class LocalUpdates:
    """Processes that train alone for some steps, and then make one common outer step.

    The outer gradient is the mean over processes of the way that the weights have gone. With
    an outer learning rate of 1 and no momentum, the outer step sets the weights to their mean:
    local SGD (Stich, arXiv 1805.09767, algorithm 1). With Nesterov momentum it is DiLoCo
    (Douillard et al., arXiv 2311.08105, algorithm 1). The state of the inner optimizer and the
    buffers of the network are not shared between processes, as in both papers.

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
        share = share_of_batches(workload, self.processes, rank)
        inner_step = workload.loop_step(network, share)
        outer = self.outer_step(list(network.parameters()))

        def step() -> float | None:
            loss = inner_step()
            if outer.is_due():  # in all processes at once
                way = outer.way()
                distributed.all_reduce(way)
                outer.take(way / self.processes)
            return loss

        return PreparedTraining(step, workload.batch, network_state(network))

    def outer_step(self, weights: Sequence[nn.Parameter]) -> "OuterStep":
        """Return the outer step for the weights of this process."""
        return OuterStep(weights, self.steps, self.outer_lr, self.outer_momentum)


class OuterStep:
    """Outer step of one process or replica, which all of them make together.

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

    def is_due(self) -> bool:
        """Count an inner step; return True if an outer one follows it."""
        self._done += 1
        return self._done % self._steps == 0

    @torch.no_grad()
    def way(self) -> Tensor:
        """Return the way (N,) from the weights of this process to the common ones."""
        return self._common - self._flat()

    @torch.no_grad()
    def take(self, mean_way: Tensor) -> None:
        """Make the outer step, and set the weights to the common ones.

        Args:
            mean_way: Mean of the ways of all processes, (N,).
        """
        self._common.grad = mean_way
        self._optimizer.step()
        sizes = [weight.numel() for weight in self._weights]
        for weight, values in zip(self._weights, self._common.split(sizes), strict=True):
            weight.copy_(values.view_as(weight))

    def _flat(self) -> Tensor:
        """Return all weights as one vector (N,)."""
        return torch.cat([weight.detach().reshape(-1) for weight in self._weights])


class LocalReplicas:
    """The same processes as replicas in one process, for studies of what they learn.

    Args:
        network: The network at its initial weights; it becomes the first replica.
        settings: The processes.
        build_optimizer: Builds the inner optimizer of a replica.
    """

    def __init__(
        self,
        network: nn.Module,
        settings: LocalUpdates,
        build_optimizer: Callable[[list[nn.Parameter]], Optimizer],
    ) -> None:
        copies = (copy.deepcopy(network) for _ in range(settings.processes - 1))
        self.networks = [network, *copies]
        weights = [list(replica.parameters()) for replica in self.networks]
        self.optimizers = [build_optimizer(own) for own in weights]
        self._outers = [settings.outer_step(own) for own in weights]

    def step(self, inputs: Tensor, targets: Tensor) -> None:
        """Let each replica take a step on its share of a batch.

        Args:
            inputs: Inputs (B, ...); the number of replicas divides B.
            targets: Targets (B, ...).
        """
        count = len(self.networks)
        shares = zip(inputs.chunk(count), targets.chunk(count), strict=True)
        replicas = zip(self.networks, self.optimizers, shares, strict=True)
        for network, optimizer, (own_inputs, own_targets) in replicas:
            optimizer.zero_grad(set_to_none=True)
            cross_entropy(network(own_inputs), own_targets).backward()
            optimizer.step()
        if all([outer.is_due() for outer in self._outers]):  # each counts
            mean_way = torch.stack([outer.way() for outer in self._outers]).mean(dim=0)
            for outer in self._outers:
                outer.take(mean_way)

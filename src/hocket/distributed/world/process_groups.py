"""Process groups of a training."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import TypeAlias

from torch import distributed

from hocket.distributed.world.membership import Group

# Receives are posted long before anything is sent; the failure detector notices hangs.
NO_TIMEOUT = timedelta(days=365)

Edge: TypeAlias = tuple[int, int]
"""Ranks of the sender and the receiver of packets."""


class ProcessGroups:
    """Groups of one training; all processes must form them at the same time.

    Args:
        stages: Number of stages, K.
        replicas: Number of replicas of each stage, R.
        timeout_s: Time-out of collective operations of NCCL, in seconds.

    Attributes:
        collectives: Group of all processes for collective operations.
        packets: Group of all processes for packets, without a time-out.
        replicas: Group of the replicas of this process's stage; None without replicas.
    """

    def __init__(self, stages: int, replicas: int, timeout_s: float) -> None:
        self._ranks = range(stages * replicas)
        self._replica_count = replicas
        self._limit = timedelta(seconds=timeout_s)
        self._formed: list[Group] = []
        self._default_group = distributed.group.WORLD
        self.replicas = self._form_replicas("gloo")
        self.packets = self._form(None, "gloo")
        self.collectives = self._form(None, "gloo")

    def form_direct(self, backend: str) -> tuple[dict[Edge, Group], Group]:
        """Form the groups from GPU to GPU; all processes must do it at the same time.

        Args:
            backend: Name of a backend of torch.

        Returns:
            For each edge the group that sends along it, and the group of the replicas of this
            process's stage; None without replicas.
        """
        # Every process must form every group, even those that it does not belong to.
        chains = [self._ranks[r :: self._replica_count] for r in range(self._replica_count)]
        edges = {
            ranks: self._form(ranks, backend)
            for chain in chains
            for low, high in pairwise(chain)
            for ranks in ((low, high), (high, low))
        }
        return edges, self._form_replicas(backend)

    def destroy(self) -> None:
        """End the threads and connections of all groups, in which nothing is under way."""
        if self._default_group is distributed.group.WORLD:  # else the caller has destroyed all
            for group in self._formed:
                distributed.destroy_process_group(group)
        self._formed.clear()

    def _form_replicas(self, backend: str) -> Group:
        count = self._replica_count
        if count == 1:
            return None
        # A wait for gloo asks the failure detector; NCCL has no such wait.
        timeout = NO_TIMEOUT if backend == "gloo" else self._limit
        stages = [self._ranks[first : first + count] for first in self._ranks[::count]]
        groups = [self._form(ranks, backend, timeout) for ranks in stages]
        return groups[distributed.get_rank() // count]

    def _form(
        self, ranks: Sequence[int] | None, backend: str, timeout: timedelta = NO_TIMEOUT
    ) -> Group:
        group = distributed.new_group(ranks, timeout=timeout, backend=backend)
        self._formed.append(group)
        return group

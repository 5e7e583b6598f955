"""Process groups of a training, which the next training of the same processes uses again.

A group of torch has threads and connections, and ends neither by itself nor without
the other processes. A training that ends in good order therefore gives its groups back, and
the next one takes them if every process has them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import TypeAlias

from torch import distributed

from hocket.distributed.world.membership import Group

# Receives are posted long before anything is sent; the failure detector notices hangs.
NO_TIMEOUT = timedelta(days=365)

Edge: TypeAlias = tuple[int, int]
"""Ranks of the sender and the receiver of packets."""
Offer: TypeAlias = tuple[int, Sequence[tuple[int, int]]]
"""Number of the last groups formed, and the number and collective count of each idle ones."""


@dataclass(frozen=True)
class Shape:
    """Ranks and time-out of the groups of a training.

    Attributes:
        stages: Number of stages, K.
        replicas: Number of replicas of each stage, R.
        timeout_s: Time-out of collective operations of NCCL, in seconds.
    """

    stages: int
    replicas: int
    timeout_s: float

    def chains(self) -> list[range]:
        """Return for each replica the ranks of its stages, in order."""
        ranks = range(self.stages * self.replicas)
        return [ranks[replica :: self.replicas] for replica in range(self.replicas)]

    def replicas_of_stages(self) -> list[range]:
        """Return for each stage the ranks of its replicas."""
        ranks = range(self.stages * self.replicas)
        return [ranks[k * self.replicas : (k + 1) * self.replicas] for k in range(self.stages)]


class ProcessGroups:
    """Groups of one training at a time; all processes must form them at the same time.

    Args:
        shape: Ranks and time-out.
        number: Number of these groups, the same in all processes.

    Attributes:
        shape: Ranks and time-out.
        number: Number of these groups, the same in all processes.
        collectives: Group of all processes for collective operations.
        packets: Group of all processes for packets, without a time-out.
        replicas: Group of the replicas of this process's stage; None without replicas.
        collective_count: Number of collective operations that this process has completed.
    """

    def __init__(self, shape: Shape, number: int) -> None:
        self.shape = shape
        self.number = number
        self.collective_count = 0
        self._default_group = distributed.group.WORLD
        self._direct: dict[str, tuple[dict[Edge, Group], Group]] = {}
        self.replicas = self._form_replicas("gloo")
        self.packets: Group = distributed.new_group(backend="gloo", timeout=NO_TIMEOUT)
        self.collectives: Group = distributed.new_group(backend="gloo", timeout=NO_TIMEOUT)

    def direct(self, backend: str) -> tuple[dict[Edge, Group], Group]:
        """Return the groups from GPU to GPU, formed when they are first asked for.

        All processes must ask at the same time.

        Args:
            backend: Name of a backend of torch.

        Returns:
            For each edge the group that sends along it, and the group of the replicas of this
            process's stage; None without replicas.
        """
        if backend not in self._direct:
            # Every process must form every group, even those that it does not belong to.
            edges = {
                ranks: distributed.new_group(ranks, timeout=NO_TIMEOUT, backend=backend)
                for chain in self.shape.chains()
                for low, high in pairwise(chain)
                for ranks in ((low, high), (high, low))
            }
            self._direct[backend] = edges, self._form_replicas(backend)
        return self._direct[backend]

    @property
    def destroyed(self) -> bool:
        """True if the caller has destroyed the default group, and with it all others."""
        return self._default_group is not distributed.group.WORLD

    def _form_replicas(self, backend: str) -> Group:
        if self.shape.replicas == 1:
            return None
        # A wait for gloo asks the failure detector; NCCL has no such wait.
        limited = timedelta(seconds=self.shape.timeout_s)
        timeout = NO_TIMEOUT if backend == "gloo" else limited
        groups = [
            distributed.new_group(ranks, timeout=timeout, backend=backend)
            for ranks in self.shape.replicas_of_stages()
        ]
        return groups[distributed.get_rank() // self.shape.replicas]


class GroupPool:
    """Groups of this process that no training uses at present."""

    def __init__(self) -> None:
        self._idle: list[ProcessGroups] = []
        self._last_number = 0

    def offer(self, shape: Shape) -> Offer:
        """Return what this process tells the others before all of them take groups."""
        self._idle = [groups for groups in self._idle if not groups.destroyed]
        fitting = [groups for groups in self._idle if groups.shape == shape]
        return self._last_number, [
            (groups.number, groups.collective_count) for groups in fitting
        ]

    def take(self, shape: Shape, offers: Sequence[Offer]) -> ProcessGroups:
        """Return groups that are idle in every process, or form new ones.

        Args:
            shape: Ranks and time-out.
            offers: Offers of all processes, this one included.
        """
        # Groups in which a process has missed an operation would mix up all later ones.
        idle = [{(number, count) for number, count in pairs} for _, pairs in offers]
        self._last_number = max(number for number, _ in offers)
        if common := set.intersection(*idle):
            number, _ = min(common)
            groups = next(groups for groups in self._idle if groups.number == number)
            self._idle.remove(groups)
            return groups
        self._last_number += 1
        return ProcessGroups(shape, self._last_number)

    def give_back(self, groups: ProcessGroups) -> None:
        """Add groups in which nothing is under way any more."""
        self._idle.append(groups)

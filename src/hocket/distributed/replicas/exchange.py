"""Sums over the replicas of a stage, in several processes or in one."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from hocket.distributed.failures.detector import Operation
from hocket.errors import HocketError


class Exchange(Protocol):
    """Sums of one replica of a stage with the others, which all begin them in the same order.

    Attributes:
        replicas: Number of replicas.
    """

    replicas: int

    @property
    def left(self) -> bool:
        """True if the training is over, so that nothing is added up any more."""

    def add_up(self, tensor: Tensor) -> Operation:
        """Begin to overwrite a tensor by the sum of the tensors of all replicas."""

    def complete(self, works: Sequence[Operation], activity: str) -> None:
        """Wait for sums.

        Args:
            works: What `add_up` returned for them.
            activity: Text for messages.
        """


class SimulatedExchange:
    """Exchange of one of several replicas in this process, which take turns.

    A sum is there once the last replica has begun it.

    Args:
        replicas: Number of replicas.
        open_sums: Tensors of the sums that some replicas have begun and others have not, by
            number; all replicas share this.
    """

    left = False

    def __init__(self, replicas: int, open_sums: dict[int, list[Tensor]]) -> None:
        self.replicas = replicas
        self._open_sums = open_sums
        self._begun = 0

    def add_up(self, tensor: Tensor) -> Operation:
        """See the protocol."""
        number = self._begun
        self._begun += 1
        tensors = self._open_sums.setdefault(number, [])
        tensors.append(tensor)
        if len(tensors) == self.replicas:
            first, *others = self._open_sums.pop(number)
            for other in others:
                first += other
            for other in others:
                other.copy_(first)
        return number

    def complete(self, works: Sequence[Operation], activity: str) -> None:
        """Check that all replicas have begun the sums; see the protocol.

        Raises:
            HocketError: One has not.
        """
        if missing := [number for number in works if number in self._open_sums]:
            raise HocketError(
                f"{activity}: {len(missing)} sums lack a replica, which has computed something "
                "else than the others"
            )

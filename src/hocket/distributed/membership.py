"""A stretch in which processes go on by themselves, and one that is killed may come back.

What they have to know of each other meanwhile is in the store. A process group cannot take
anybody back, so that neighbours make a group of two anew, and at the end all make one of all.
"""

from datetime import timedelta
from typing import Any, TypeAlias

from torch.distributed.distributed_c10d import PrefixStore, ProcessGroupGloo, Store

from hocket.distributed.failures import FailureDetector
from hocket.distributed.identity import WAIT_S, ProcessIdentity
from hocket.errors import PeerLostError

Group: TypeAlias = Any
"""Torch names no public type for what a group of processes can do."""
PAIR_S = WAIT_S / 5
"""Gloo waits five times its time-out for a connection, which one who is killed never makes."""


class Membership:
    """Where one process is in it, and who of the others has come back.

    Args:
        seat: Of this process.
        store: That of the world.
        alarm: That of the world.
        place: What this process is called.

    Raises:
        PeerLostError: It was started again, and the others have met without it.
    """

    def __init__(
        self, seat: ProcessIdentity, store: Store, alarm: FailureDetector, place: str
    ) -> None:
        self.number = 0
        self.detached = False
        self._seat = seat
        self._store = store
        self._alarm = alarm
        self._paired: set[str] = set()
        if not seat.incarnation:
            return
        if alarm.all_arrived("after outing 1"):
            error = PeerLostError(
                f"{place} was started again alone, but all had met after their last turn, from "
                "where on they need each other; start the whole job again, from its last "
                "checkpoints"
            )
            alarm.report(error)
            raise error
        alarm.withdraw("after outing 1")
        store.set(f"life/{seat.rank}", str(seat.incarnation))

    def detach(self) -> None:
        """From here on nobody waits for this process, nor it for anybody."""
        self.number += 1
        self.detached = True
        if self._seat.rejoin_markers is not None:
            self._seat.rejoin_markers.mark_detached(self._seat.rank)

    def reunite(self, timeout_s: float) -> Group | None:
        """Wait for all; gives a new group of them, if one has come back whom the old has not.

        Raises:
            HocketError: One has failed, or does not come.
        """
        self._alarm.wait_for_all(f"after outing {self.number}", "meet after their last turn")
        self.detached = False
        if self._seat.rejoin_markers is not None:
            self._seat.rejoin_markers.mark_reunited()
        if not (latest := self._latest()):
            return None
        return self._group(f"all/{latest}", self._seat.rank, self._seat.size, timeout_s)

    @property
    def may_rejoin(self) -> bool:
        """Whether one that is missed may come back."""
        whereabouts = self._seat.rejoin_markers
        return self.detached and whereabouts is not None and not whereabouts.unrecoverable

    def incarnation(self, rank: int) -> int:
        """Which of those that were started again has the place of a rank; 0 for none."""
        key = f"life/{rank}"
        return int(self._store.get(key)) if self._store.check([key]) else 0

    def pair_group(self, rank: int) -> Group | None:
        """A group with another process, if one of the two is new and both are ready for it.

        Raises:
            RuntimeError: The other one was killed meanwhile.
        """
        low, high = sorted((self._seat.rank, rank))
        lives = self.incarnation(low), self.incarnation(high)
        name = f"pair/{low}-{high}/{lives[0]}-{lives[1]}"
        if lives == (0, 0) or name in self._paired:
            return None
        self._store.set(f"{name}/{self._seat.rank}", "ready")
        if not self._store.check([f"{name}/{rank}"]):
            return None
        self._paired.add(name)
        return self._group(name, int(self._seat.rank == high), 2, PAIR_S)

    def _latest(self) -> int:
        return max(map(self.incarnation, range(self._seat.size)))

    def _group(self, name: str, rank: int, size: int, timeout_s: float) -> Group:
        timeout = timedelta(seconds=timeout_s)
        return ProcessGroupGloo(PrefixStore(name, self._store), rank, size, timeout)

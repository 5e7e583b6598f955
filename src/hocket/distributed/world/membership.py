"""Elastic phase: the processes need no common process group, and a killed one may rejoin.

During the phase the processes find out about each other through the store. A process group
cannot take a process in, so two neighbours form a new group of two when one of them has
rejoined, and at the end of the phase all processes form a new group of all.
"""

import threading
import time
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

from torch.distributed.distributed_c10d import PrefixStore, ProcessGroupGloo, Store

from hocket.distributed.failures.detector import FailureDetector
from hocket.distributed.failures.first_failure import FAILURE_KEY
from hocket.distributed.failures.phases import others
from hocket.distributed.failures.store_client import read_key
from hocket.distributed.folder.identity import KEY_TIMEOUT_S, ProcessIdentity
from hocket.distributed.folder.launch_folder import Note
from hocket.distributed.network.strangers import form_without_strangers
from hocket.errors import PeerFailedError, PeerLostError, WorldError

Group: TypeAlias = Any
"""A process group; torch names no public type for it."""
END_OF_PHASE = "end of elastic phase {}"
"""Name of the barrier at the end of a phase."""
PAIR_TIMEOUT_S = KEY_TIMEOUT_S / 5
"""Gloo waits five times its time-out for the connection that a killed process never makes."""


class Membership:
    """Membership of one process in the elastic phases of a training.

    Attributes:
        phase: Number of the current or last elastic phase, counted from 1; 0 before the first.
        detached: True during an elastic phase.
        rejoined: True if this process was started alone, instead of one that was killed.

    Raises:
        PeerLostError: This process was restarted, and the others have already ended the phase.
    """

    def __init__(
        self, identity: ProcessIdentity, store: Store, failures: FailureDetector
    ) -> None:
        self.phase = 0
        self.detached = False
        self.rejoined = identity.incarnation > 0
        self._identity = identity
        self._store = store
        self._failures = failures
        self._next_tries: dict[str, int] = {}  # of groups of two, by name
        self._forming = threading.Lock()
        if not self.rejoined:
            return
        keys = _arrival_keys(END_OF_PHASE.format(1), identity.size)
        if all(map(failures.store.get, keys)):
            error = PeerLostError(
                f"{failures.name} was started again alone, but all stages had already finished "
                "their last tick, and none can be replaced from then on; start the whole job "
                "again, from its last checkpoints"
            )
            failures.record.report(error)
            raise error
        # An earlier process of this rank may have arrived there.
        failures.store.ask(lambda store: store.delete_key(keys[identity.rank]))
        store.set(f"incarnation/{identity.rank}", str(identity.incarnation))

    def detach(self, *, again: bool) -> None:
        """Begin an elastic phase: from now on this process needs no common process group.

        Args:
            again: True if this process continues what it did before it was started again.

        Raises:
            WorldError: It was started again alone, and would begin anew.
        """
        if self.rejoined and not self.phase and not again:
            raise WorldError(
                f"{self._failures.name} was started again alone, and the others train already; "
                "call resume with the folder of the checkpoints before fit"
            )
        self.phase += 1
        self.detached = True
        if self._identity.launch_folder is not None:
            self._identity.launch_folder.write(Note.DETACHED, self._identity.rank)

    def reunite(self, timeout_s: float) -> Group | None:
        """End the elastic phase when all processes do.

        Args:
            timeout_s: Time-out of an operation of the new group, in seconds.

        Returns:
            A new group of all processes if one of them has rejoined in this phase, None
            otherwise.

        Raises:
            HocketError: A process has failed, or does not arrive.
        """
        self.wait_for_all(END_OF_PHASE.format(self.phase), "finish their last tick")
        self.detached = False
        if self._identity.launch_folder is not None:
            self._identity.launch_folder.write(Note.REUNITED)
        latest = max(map(self.incarnation, range(self._identity.size)))
        if not latest or self.phase > 1:  # in which no process can rejoin
            return None
        rank, size = self._identity.rank, self._identity.size
        form = partial(self._group, f"all/{latest}", rank, size, timeout_s)
        return self._failures.connect(form)

    def wait_for_all(
        self, barrier: str = "start", purpose: str = "build their Trainer"
    ) -> None:
        """Wait until all processes have reached a barrier.

        Args:
            barrier: Name of the barrier.
            purpose: The action of the processes there, for the error message.

        Raises:
            PeerFailedError: One of them has failed instead.
            HangError: One of them hangs.
        """
        arrived, store, rank = False, self._failures.store, self._identity.rank
        folder = self._identity.launch_folder
        missing = keys = _arrival_keys(barrier, self._identity.size)
        awaited = f"all processes to {purpose}"
        activity, ranks = f"waiting for {awaited}", others(range(len(keys)), rank)
        with self._failures.waiting_for(activity, ranks, awaited) as wait:
            while True:
                # Tell the others, and see who has arrived.
                arrived = arrived or store.set(keys[rank], "yes")
                missing = [key for key in missing if store.get(key) is None]

                # A process may die before any other has met it: no connection tells of that.
                if first := store.get(FAILURE_KEY) or (folder and folder.read(Note.LOST)):
                    raise PeerFailedError(first)
                if not missing:
                    return
                wait.look()
                time.sleep(0.01)

    @property
    def may_rejoin(self) -> bool:
        """True if a process that is gone may be replaced."""
        folder = self._identity.launch_folder
        if not self.detached or folder is None or not folder.path.exists():
            return False
        return not folder.has(Note.UNRECOVERABLE)

    def incarnation(self, rank: int) -> int:
        """Return the number of the restart that began the process of a rank; 0 for none."""
        return int(read_key(self._store, f"incarnation/{rank}") or 0)

    def pair_group(self, rank: int) -> Group | None:
        """Form a group with another process.

        A call after one that has failed, or whose group was lost, tries again.

        Returns:
            The group; None if neither of the two has rejoined, or if the other one is not
            ready for this try.

        Raises:
            RuntimeError: The other process was killed meanwhile, or was too slow.
            HangError: The same, a little later.
            PeerLostError: A stranger has connected.
        """
        # Name the group by both processes and their restarts.
        low, high = sorted((self._identity.rank, rank))
        incarnations = self.incarnation(low), self.incarnation(high)
        name = f"pair/{low}-{high}/{incarnations[0]}-{incarnations[1]}"
        if incarnations == (0, 0):
            return None
        # Each process tells which try it is ready for; the one that has done fewer skips some.
        theirs = int(read_key(self._store, f"{name}/{rank}") or -1)
        number = max(self._next_tries.get(name, 0), theirs)
        mine = f"{name}/{self._identity.rank}"
        self._store.set(mine, str(number))
        if theirs < number:
            return None
        self._next_tries[name] = number + 1
        place = int(self._identity.rank == high)
        try:
            return self._group(f"{name}/try {number}", place, 2, PAIR_TIMEOUT_S)
        except Exception:
            self._store.delete_key(mine)  # lest the other one waits in this try
            raise

    def _group(self, name: str, rank: int, size: int, timeout_s: float) -> Group:
        store, timeout = PrefixStore(name, self._store), timedelta(seconds=timeout_s)
        form = partial(ProcessGroupGloo, store, rank, size, timeout)
        # The door would take the connections of another group that forms now for a stranger's.
        with self._forming:
            return form_without_strangers(
                form, store, rank=rank, size=size, timeout_s=5 * timeout_s
            )


def _arrival_keys(barrier: str, size: int) -> list[str]:
    """Return the keys of the store that tell by rank who has reached a barrier."""
    return [f"arrived/{barrier}/{rank}" for rank in range(size)]

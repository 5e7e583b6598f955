"""Flags in the store: processes set and read them without waiting for each other."""

from collections.abc import Iterable

from torch.distributed.distributed_c10d import Store

from hocket.distributed.failures.detector import FailureDetector
from hocket.distributed.failures.store_client import STORE_TIMEOUT_S, ask_store


class StoreFlags:
    """Named flags; each process sets its own value and reads all values.

    Args:
        store: Store that all processes read and write.
        failures: Failure detector of the world; None in a process alone.
    """

    def __init__(
        self, store: Store, rank: int, size: int, failures: FailureDetector | None = None
    ) -> None:
        self._store = store
        self._failures = failures
        self._rank = rank
        self._size = size
        self._name_count = 0
        self._timeouts = 0  # in a row, of the store

    def new_name(self) -> str:
        """Return a new name; the n-th call returns the same name in all processes."""
        self._name_count += 1
        return f"flag/{self._name_count}"

    def set(self, name: str, value: str = "yes", *, rank: int | None = None) -> None:
        """Set a flag to a value.

        Args:
            name: Name of the flag.
            value: The value.
            rank: Process whose flag it is; this one if not given.
        """
        owner = self._rank if rank is None else rank
        ask_store(lambda: self._store.set(f"{name}/{owner}", value))

    def clear(self, name: str) -> None:
        """Delete the flag that an earlier process of this rank has set before it was killed."""
        ask_store(lambda: self._store.delete_key(f"{name}/{self._rank}"))

    def all_set(self, name: str, ranks: Iterable[int] | None = None) -> bool:
        """Return True if all processes, or the given ranks, have set the flag.

        Raises:
            HangError: The store has not answered for too long.
        """
        chosen = range(self._size) if ranks is None else ranks
        keys = [f"{name}/{rank}" for rank in chosen]
        present, thread = ask_store(lambda: self._store.check(keys))
        # Time-outs are counted, not timed: this process may itself have been stopped.
        self._timeouts = self._timeouts + 1 if thread.is_alive() else 0
        failures, silent_s = self._failures, self._timeouts * STORE_TIMEOUT_S
        if failures is not None and silent_s >= failures.limits.timeout_s:
            raise failures.timed_out(
                failures.limits.timeout_s,
                "an answer of the store that all processes share: a process may have been "
                "killed while it wrote there",
                "timeout_s",
            )
        return bool(present)

    def values(self, name: str) -> list[str] | None:
        """Return the values of all processes by rank; None until all have set the flag.

        Raises:
            HangError: The store has not answered for too long.
        """
        if not self.all_set(name):
            return None
        keys = [f"{name}/{rank}" for rank in range(self._size)]
        values, _ = ask_store(lambda: [self._store.get(key).decode() for key in keys])
        return values

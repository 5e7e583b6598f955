"""What processes leave for each other to find, so that nobody waits for anybody."""

from collections.abc import Iterable

from torch.distributed.distributed_c10d import Store

from hocket.distributed.failures import PATIENCE_S, FailureDetector, ask_store


class StoreFlags:
    """Where each process says something under a name, and sees who else has.

    Args:
        store: Where all processes can read and write.
        alarm: That of the world.
        rank: Of this process.
        size: How many there are.
    """

    def __init__(self, store: Store, alarm: FailureDetector, rank: int, size: int) -> None:
        self._store = store
        self._alarm = alarm
        self._rank = rank
        self._size = size
        self._topics = 0
        self._unanswered = 0  # questions to the store, of late

    def topic(self) -> str:
        """A new name; the same one where all processes ask as often."""
        self._topics += 1
        return f"topic/{self._topics}"

    def set(self, name: str, words: str = "yes") -> None:
        """Leave words under a name."""
        ask_store(lambda: self._store.set(f"{name}/{self._rank}", words))

    def clear(self, name: str) -> None:
        """Take back what the process that was killed in this place had said."""
        ask_store(lambda: self._store.delete_key(f"{name}/{self._rank}"))

    def all_set(self, name: str, ranks: Iterable[int] | None = None) -> bool:
        """Whether all processes have said something there, or those that are named.

        Raises:
            HangError: The store has not answered for too long.
        """
        chosen = range(self._size) if ranks is None else ranks
        keys = [f"{name}/{rank}" for rank in chosen]
        found, reached = ask_store(lambda: self._store.check(keys))
        # Counted and not timed: it may be this process that was stopped.
        self._unanswered = 0 if reached else self._unanswered + 1
        if self._unanswered * PATIENCE_S >= self._alarm.timeout_s:
            raise self._alarm.store_timed_out()
        return bool(found)

    def values(self, name: str) -> list[str] | None:
        """What all have said there, by rank; None until all have."""
        keys = [f"{name}/{rank}" for rank in range(self._size)]
        return (
            [self._store.get(key).decode() for key in keys] if self._store.check(keys) else None
        )

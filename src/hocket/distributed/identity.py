"""Where a process sits among the others, and whether another one was killed there before."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from torch import distributed
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store

from hocket.distributed.rejoin_files import RejoinMarkers

WAIT_S = 10.0
"""How long what is about to be written may take."""


@dataclass(frozen=True)
class ProcessIdentity:
    """The place of one process among the others.

    Attributes:
        rank: Which it is.
        size: How many there are.
        store: Where all of them can read and write.
        incarnation: Which of the processes that were started again it is, counted from 1; 0 for one
            that was there from the beginning.
        rejoin_markers: Of the processes that may come back alone where they are killed; None where
            none does.
    """

    rank: int
    size: int
    store: Store
    incarnation: int = 0
    rejoin_markers: RejoinMarkers | None = None


def store_file(folder: str) -> Path:
    """The file through which processes meet in a folder."""
    return Path(folder) / "seats"


def open_store(folder: str) -> Store:
    """What the processes of a launch share that meet in a folder."""
    file = str(store_file(folder))
    store = distributed.FileStore(file)  # type: ignore[attr-defined]  # exported conditionally
    # Who makes a group with one that is killed meanwhile waits for its address so long.
    store.set_timeout(timedelta(seconds=WAIT_S))
    return PrefixStore("seats", store)


_given: list[ProcessIdentity] = []


def set_identity(seat: ProcessIdentity) -> None:
    """Give this process its seat, which nobody else can know."""
    _given[:] = [seat]


def identity() -> ProcessIdentity | None:
    """That of this process; None where it is alone."""
    if _given:
        return _given[0]
    if not distributed.is_initialized():
        return None
    # Private, but the only way to the store of a group that the caller has made.
    return ProcessIdentity(
        distributed.get_rank(), distributed.get_world_size(), _get_default_store()
    )


def has_rejoined() -> bool:
    """Whether this process was started again, alone, in the place of one that was killed."""
    return bool(_given) and _given[0].incarnation > 0

"""Identity of this process: its rank, the common store, and its number among restarts."""

from dataclasses import dataclass
from datetime import timedelta

from torch import distributed
from torch.distributed.distributed_c10d import PrefixStore, Store, _get_default_store

from hocket.distributed.folder.launch_folder import LaunchFolder, Note
from hocket.distributed.folder.process_state import is_at_work

KEY_TIMEOUT_S = 10.0
"""Seconds to wait for a key of the store that another process is about to write."""


@dataclass(frozen=True)
class ProcessIdentity:
    """Identity of one process.

    Attributes:
        store: Store that all processes read and write.
        incarnation: Number of the restart that began this process, counted from 1; 0 for a
            process that was there from the beginning.
        launch_folder: Folder of the launch; None for processes that Hocket has not launched.
    """

    rank: int
    size: int
    store: Store
    incarnation: int = 0
    launch_folder: LaunchFolder | None = None

    def is_silent(self, rank: int) -> bool:
        """Return False if a process that does not answer is at work; else tell the launcher."""
        if self.launch_folder is None:
            return True
        pid = self.launch_folder.read(Note.STARTED, rank)
        if silent := pid is None or not is_at_work(int(pid)):
            self.launch_folder.write(Note.SILENT, rank)
        return silent


def open_store(folder: LaunchFolder) -> Store:
    """Open the store that the processes of a launch share."""
    store = distributed.FileStore(str(folder.rendezvous))  # type: ignore[attr-defined]  # exported conditionally
    # To form a group with a process that is killed meanwhile takes this long to fail.
    store.set_timeout(timedelta(seconds=KEY_TIMEOUT_S))
    return PrefixStore("launch", store)


_assigned: list[ProcessIdentity] = []


def set_identity(identity: ProcessIdentity) -> None:
    """Set the identity of this process, as its launcher has given it."""
    _assigned[:] = [identity]


def current_identity() -> ProcessIdentity | None:
    """Return the identity of this process; None if there is only this one."""
    if _assigned:
        return _assigned[0]
    if not distributed.is_initialized():
        return None
    # Private, but the only way to the store of a group that the caller has made.
    return ProcessIdentity(
        distributed.get_rank(), distributed.get_world_size(), _get_default_store()
    )


def has_rejoined() -> bool:
    """Return True if this process was started alone to replace one that was killed."""
    return bool(_assigned) and _assigned[0].incarnation > 0

"""Folders of checkpoints that belong to one training, so that no two are mixed in one."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from hocket.checkpoint.directory import newest_first
from hocket.errors import CheckpointError
from hocket.files import lock_file, unlock_file


@contextmanager
def claim_folder(folder: Path, own: set[Path]) -> Iterator[None]:
    """Context manager that keeps others from writing checkpoints to a folder.

    Args:
        folder: Folder of checkpoints; created if it does not exist.
        own: Folders that this training has written checkpoints to, or was resumed from; the
            folder is added.

    Raises:
        CheckpointError: It has checkpoints of another training, or a fit that is under way
            uses it.
    """
    place = folder.resolve()
    if place not in own and (others := newest_first(folder)):
        raise CheckpointError(
            f"{str(folder)!r} has checkpoints of another training, such as "
            f"{others[0].name!r}; resume from it, or give each training a folder of its own"
        )
    with ExitStack() as stack:
        # Lock it, if it can be; the first checkpoint tells what is wrong with it. The system
        # unlocks it if this process is killed.
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            number = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, number)
            if not lock_file(number):
                raise CheckpointError(
                    f"{str(folder)!r} is the folder of a fit that is under way; save "
                    "checkpoints of your own, or of another training, to another folder"
                )
            # Not only closed: workers of loaders, which were forked meanwhile, have a copy.
            stack.callback(unlock_file, number)
        own.add(place)
        yield

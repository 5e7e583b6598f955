"""Run folder: its name, its checkpoints, and its lock."""

import os
import platform
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hocket.checkpoint.directory import newest_first
from hocket.errors import RunFolderError
from hocket.files import NO_LINK, lock_file
from hocket.options.named import Named
from hocket.remedies.registry import split_remedies
from hocket.runs.config import RunConfig

TIMELINE = "timeline.json"
"""File of a run folder with the time span of every action, if they are recorded."""
LOCK = ".lock"
"""File of a run folder that the process that trains in it holds a lock on."""
LOCK_LENGTH = 300
"""Most characters that are read of it."""


def create_run_dir(config: RunConfig) -> Path:
    """Create the folder of a new run, by default a new one under runs/, and return it.

    Raises:
        RunFolderError: It exists already, or cannot be created.
    """
    require_new(config.run_dir)
    # Name a folder under runs/ after the training.
    texts = (split_remedies(config.method)[0], config.network, config.data)
    method, network, data = (Named.parse(text).title for text in texts)
    title = f"{method}{config.stages}-{network}-{data}-{time.strftime('%Y%m%d-%H%M%S')}"
    run_dir, number = config.run_dir or Path("runs") / title, 0
    # Create it, with a number if another one was begun in the same second.
    while True:
        try:
            run_dir.mkdir(parents=True, exist_ok=config.run_dir is not None)
            return run_dir
        except OSError as error:
            if config.run_dir is not None or not run_dir.exists():
                raise RunFolderError(
                    f"cannot make the run folder {str(run_dir)!r}: {error.strerror}; name "
                    "another with --run-dir"
                ) from error
        number += 1
        run_dir = Path("runs") / f"{title}-{number}"


def require_new(run_dir: Path | None) -> None:
    """Refuse a run folder that exists and is not empty.

    Raises:
        RunFolderError: There is something in it.
    """
    if run_dir is None or not os.path.lexists(run_dir):
        return
    if not run_dir.is_dir() or any(run_dir.iterdir()):
        raise RunFolderError(
            f"the run folder {str(run_dir)!r} exists already; name another with --run-dir, or "
            "move that one away"
        )


def require_no_links(run_dir: Path) -> None:
    """Refuse to continue in a folder through which files elsewhere would be written.

    Raises:
        RunFolderError: There are links, pipes or devices in it, or files with a second name.
    """
    strange = []
    for folder, folders, files in os.walk(run_dir):
        for path in (Path(folder, name) for name in (*folders, *files)):
            with suppress(FileNotFoundError):  # another stage still trains in the folder
                found = path.lstat()
                plain = stat.S_ISREG(found.st_mode) and found.st_nlink == 1
                if not (plain or stat.S_ISDIR(found.st_mode)):
                    strange.append(path)
    if strange:
        names = ", ".join(repr(str(path.relative_to(run_dir))) for path in sorted(strange))
        raise RunFolderError(
            f"the run folder {str(run_dir)!r} has links (symbolic or hard), pipes or "
            f"devices, through which something else might be written: {names}; replace them by "
            "copies of the files"
        )


@contextmanager
def lock_run_dir(run_dir: Path, noun: str = "run folder") -> Iterator[None]:
    """Context manager that keeps other processes from training in the same folder.

    The system gives the lock back when this process ends, however it ends.

    Raises:
        RunFolderError: Another process trains there, or the lock cannot be created.
    """
    # Open the file of the lock, never through a link.
    file = run_dir / LOCK
    try:
        number = os.open(file, os.O_RDWR | os.O_CREAT | NO_LINK, 0o666)
    except OSError as error:
        raise RunFolderError(cannot_write(file, error)) from error
    with os.fdopen(number, "r+") as lock:
        # Take the lock.
        if not lock_file(number):
            raise RunFolderError(
                f"the {noun} {str(run_dir)!r} is in use by {lock.read(LOCK_LENGTH)}; wait "
                "until it has ended, or end it"
            )
        # Leave a name for others' messages; on a full disk the lock holds without one.
        with suppress(OSError):
            lock.truncate()
            os.write(number, f"process {os.getpid()} on {platform.node()}".encode())
        yield


def cannot_write(file: Path, error: OSError) -> str:
    """Return the message for a file of a run folder that cannot be written."""
    return (
        f"cannot write {str(file)!r}: {error.strerror or error}; make room for it, or name "
        "another folder"
    )


def checkpoint_dir(run_dir: Path) -> Path:
    """Return the folder of a run's checkpoints."""
    return run_dir / "checkpoints"


def has_checkpoints(run_dir: Path, stages: int) -> bool:
    """Return True if all stages of a run can be resumed from checkpoints in its folder."""
    folder = checkpoint_dir(run_dir)
    by_stage = [folder / f"stage{k}" for k in range(stages)]
    return bool(newest_first(folder)) or all(map(newest_first, by_stage))

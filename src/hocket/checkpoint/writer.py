"""Checkpoints while a training goes on: the state is copied at once, and written meanwhile.

Among several processes each writes its own part and says so in the store of the world; the
first one seals the checkpoint once it has heard of all parts of that tick. Nobody waits in a
tick for anybody: that is for threads.
"""

import json
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from hocket.checkpoint.directory import (
    Manifest,
    Seal,
    keep_newest,
    remove_unfinished,
    seal,
    unfinished_path,
    write_file,
)
from hocket.checkpoint.serialize import pack
from hocket.distributed.world import World
from hocket.errors import CheckpointError, OptionError, listed

OnFailure = Literal["warn", "stop"]


@dataclass(frozen=True)
class Checkpoints:
    """Where and when a training by epochs leaves checkpoints.

    They are written at the end of every epoch and when the training is stopped, too.

    Attributes:
        folder: Where they go; among several processes one that all of them see.
        every: Ticks from one to the next; 0 for none within an epoch.
        keep: How many of the newest stay.
        on_error: Whether the training goes on, with a warning, or stops where one cannot be
            written.
        note: Asked at each checkpoint for plain values that ``resume`` gives back.

    Raises:
        OptionError: A number is out of range.
    """

    folder: Path
    every: int = 0
    keep: int = 3
    on_error: OnFailure = "warn"
    note: Callable[[], Any] | None = None

    def __post_init__(self) -> None:
        problems = []
        if self.every < 0:
            problems.append(f"every is {self.every}; use 0 or a number of ticks")
        if self.keep < 1:
            problems.append(f"keep is {self.keep}; use at least 1")
        if self.on_error not in ("warn", "stop"):
            problems.append(f"on_error is {self.on_error!r}; use 'warn' or 'stop'")
        if problems:
            raise OptionError(listed("checkpoints cannot be left so", problems))


class CheckpointWriter:
    """Writes the checkpoints of one training.

    Args:
        checkpoints: Where they go.
        world: This process among the others; None where it is alone.
    """

    def __init__(self, checkpoints: Checkpoints, world: World | None) -> None:
        self._checkpoints = checkpoints
        self._world = world
        self._thread: threading.Thread | None = None
        self._failure: str | None = None
        self.last = ""  # the name of the last one begun
        if world is None or world.is_main:
            remove_unfinished(checkpoints.folder)
        if world is not None:
            world.gather(None)  # nobody writes before that

    def due(self, ticks: int) -> bool:
        """Whether one is to be written after so many ticks."""
        return self._checkpoints.every > 0 and ticks % self._checkpoints.every == 0

    def save(
        self, name: str, parts: Mapping[str, Any], manifest: Manifest, refused: str = ""
    ) -> None:
        """Copy the states of this process's parts, and begin to write them.

        Among several processes all must call it, for the same tick.

        Args:
            name: Of the checkpoint.
            parts: States by file.
            manifest: That of the checkpoint, but for the seals of its parts.
            refused: Why this process's parts are none to go on from, if they are not; there is
                no checkpoint of that tick then.

        Raises:
            CheckpointError: A state cannot be written, or the one before could not and
                ``on_error`` is ``stop``.
        """
        self.wait()
        packed = {part: pack(state, part) for part, state in parts.items()}
        self.last = name
        topic = "" if self._world is None else self._world.flags.topic()
        work = partial(self._write, name, packed, manifest, topic, refused)
        self._thread = threading.Thread(target=work, name="hocket-saver", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until what was begun is on the disk.

        Raises:
            CheckpointError: It is not, and ``on_error`` is ``stop``.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is None:
            return
        if self._checkpoints.on_error == "stop":
            raise CheckpointError(failure)
        warnings.warn(f"{failure}; the training goes on without it", stacklevel=2)

    def _write(
        self,
        name: str,
        packed: dict[str, memoryview],
        manifest: Manifest,
        topic: str,
        refused: str,
    ) -> None:
        """In a thread of its own, whose failures are told by whoever waits for it."""
        place = self._checkpoints.folder
        own = unfinished_path(place, name)
        said: Any = f"the checkpoint {name} is refused: {refused}"
        if not refused:
            try:
                seals = {part: write_file(own, part, data) for part, data in packed.items()}
                said = {part: asdict(seal) for part, seal in seals.items()}
            except OSError as error:
                said = _why(name, packed, place, error)
        words = [said] if self._world is None else self._heard(self._world, topic, said)
        if words is None:  # another process seals it
            self._failure = said if isinstance(said, str) else None
            return
        failures = [word for word in words if isinstance(word, str)]
        if not failures:
            parts = {part: Seal(**seal) for word in words for part, seal in word.items()}
            try:
                seal(place, name, replace(manifest, parts=parts))
                keep_newest(place, self._checkpoints.keep)
                return
            except OSError as error:
                failures = [_why(name, packed, place, error)]
            except CheckpointError as error:
                failures = [f"the checkpoint {name} is not complete: {error}"]
        self._failure = "; ".join(dict.fromkeys(failures))
        # What is left of it would fill the disk.
        shutil.rmtree(own, ignore_errors=True)

    def _heard(self, world: World, topic: str, said: Any) -> list[Any] | None:
        """What all processes say of their parts, at the first one."""
        world.flags.set(topic, json.dumps(said))
        if not world.is_main:
            return None
        end = time.monotonic() + world.failures.timeout_s
        while (words := world.flags.values(topic)) is None:
            if time.monotonic() > end:
                return ["a process did not write its part of a checkpoint in time"]
            time.sleep(0.02)
        return [json.loads(word) for word in words]


def _why(name: str, packed: Mapping[str, memoryview], place: Path, error: OSError) -> str:
    """What to say of a checkpoint that could not be written."""
    wanted = sum(map(len, packed.values())) / 2**20
    there = next(folder for folder in (place, *place.parents) if folder.exists())
    free = shutil.disk_usage(there).free / 2**20
    return (
        f"cannot write the checkpoint {name} to {str(place)!r}: {error.strerror}; this process "
        f"needs {wanted:.1f} MiB, and {free:.1f} MiB are free there"
    )

"""Writing of checkpoints: the state is copied at once, and written by a thread.

With several processes, each writes its own part and publishes the digest in the store of the
world; rank 0 finishes the checkpoint once it has the digests of all parts of that tick, and
publishes that it is complete. Only threads wait for each other; no tick does.
"""

import json
import os
import shutil
import threading
import time
from collections import ChainMap, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from hocket.checkpoint.directory import (
    FileDigest,
    Manifest,
    finish_checkpoint,
    keep_newest,
    remove_unfinished,
    unfinished_path,
    write_file,
)
from hocket.checkpoint.serialize import pack
from hocket.distributed.failures.phases import Phase, RunningClock
from hocket.distributed.world.solo_world import SoloWorld
from hocket.distributed.world.world import World
from hocket.errors import CheckpointError, HocketError, OptionError, raise_problems, warn
from hocket.options.hints import wrong_fields
from hocket.options.ranges import Range, out_of_range
from hocket.options.require import wrong_functions

OnCheckpointError = Literal["warn", "stop"]
_POLL_S = 0.02
"""Seconds between two requests to the store."""
_COMPLETE, _GIVEN_UP = "{}/complete", "{}/given-up"
"""Flags of rank 0 once it has completed a checkpoint, or removed it as a part is missing."""


@dataclass(frozen=True)
class Checkpoints:
    """Options of the checkpoints of a fit: where, how often, and how many to keep.

    Checkpoints are also written at the end of every epoch and when the training is interrupted.

    Attributes:
        folder: Directory of the checkpoints; all processes must share it.
        every: Ticks between two checkpoints; 0 for none within an epoch.
        keep: Number of the newest checkpoints to keep.
        on_error: ``warn`` continues the training if a checkpoint cannot be written; ``stop``
            raises an error.
        note: Called at each checkpoint for plain values that ``resume`` returns.

    Raises:
        OptionError: A value is of another kind, or a number is out of range.

    >>> Checkpoints("runs/mine", every=500).keep  # for `fit(..., checkpoints=...)`
    3
    """

    folder: Path | str
    every: int = 0
    keep: int = 3
    on_error: OnCheckpointError = "warn"
    note: Callable[[], Any] | None = None

    def __post_init__(self) -> None:
        problems = wrong_fields(self) + wrong_functions(note=self.note)
        problems += out_of_range(self, {"every": Range(least=0), "keep": Range(least=1)})
        raise_problems(OptionError, "invalid options for checkpoints", problems)


@dataclass(frozen=True)
class _Job:
    """A checkpoint to write: what its thread needs to know."""

    name: str
    packed: Mapping[str, memoryview]  # by the names of the files of this process
    manifest: Manifest  # without the digests of the parts
    flag: str  # under which processes publish their digests
    refusal: str  # reason why this state must not be resumed from; empty if it may


class CheckpointWriter:
    """Writer of the checkpoints of one training.

    Args:
        checkpoints: Where to write them, and how many to keep.
        world: The processes of the training.

    Attributes:
        last_name: Name of the newest checkpoint whose writing has begun.
    """

    def __init__(self, checkpoints: Checkpoints, world: World | SoloWorld) -> None:
        self._checkpoints = checkpoints
        self._world = world
        self._written: threading.Event | None = None  # of the checkpoint that was begun
        self._failure: str | None = None
        self._aside: list[Path] = []  # checkpoints of another branch, renamed
        self._complete: deque[Path] = deque()
        self._undecided: deque[tuple[str, str]] = deque()  # names and flags; rank 0 decides
        self.last_name = ""
        self._place = Path(checkpoints.folder).resolve()
        if world.is_main:
            remove_unfinished(Path(checkpoints.folder))
        world.gather(None, Phase.SAVING)  # none writes before the old files are removed

    def save(
        self, name: str, parts: Mapping[str, Any], manifest: Manifest, refusal: str = ""
    ) -> None:
        """Copy the states of this process's parts, and begin to write them.

        With several processes all must call it, for the same tick.

        Args:
            name: Name of the checkpoint.
            parts: States by file name.
            manifest: Manifest of the checkpoint, without the digests of its parts.
            refusal: Reason why this process's state must not be resumed from, if there is one;
                then no checkpoint of that tick is written.

        Raises:
            CheckpointError: A state cannot be serialized, or the previous checkpoint could not
                be written and ``on_error`` is ``stop``.
        """
        self.wait()
        packed = {part: pack(state, part) for part, state in parts.items()}
        self.last_name = name
        flag = self._world.flags.new_name()
        job = _Job(name, packed, manifest, flag, refusal)
        self._written = written = threading.Event()

        def write() -> None:
            try:
                self._write(job)
            finally:
                written.set()

        thread = threading.Thread(target=write, name="hocket-saver", daemon=True)
        try:
            thread.start()
        except BaseException:
            time.sleep(_POLL_S)  # after a Ctrl-C it may be about to run
            if thread.ident is None:  # the system has refused it
                self._written = None
            raise

    def take_complete(self) -> list[Path]:
        """Return the checkpoints found complete since the last call, in their order."""
        return [self._complete.popleft() for _ in range(len(self._complete))]

    def settle(self) -> None:
        """Wait until it is known of each checkpoint whether rank 0 has completed it."""
        clock = RunningClock(most_s=1.0)
        with suppress(HocketError):  # the store hangs; the training is told by other means
            while not self._learn_decisions() and clock.seconds < self._world.slow_timeout_s:
                time.sleep(_POLL_S)

    def _learn_decisions(self) -> bool:
        """Act on what rank 0 has decided; return True if no checkpoint is left undecided."""
        folder, flags = Path(self._checkpoints.folder), self._world.flags
        while self._undecided:
            name, flag = self._undecided[0]
            if flags.all_set(_COMPLETE.format(flag), ranks=[0]):
                self._complete.append(folder / name)
            elif flags.all_set(_GIVEN_UP.format(flag), ranks=[0]):
                shutil.rmtree(unfinished_path(folder, name), ignore_errors=True)
            else:
                return False
            self._undecided.popleft()
        return True

    def wait(self) -> None:
        """Wait until this process's part of the checkpoint that was begun is on the disk.

        In rank 0, the whole checkpoint is. Other ranks learn of those that are complete.

        Raises:
            CheckpointError: It could not be written, and ``on_error`` is ``stop``.
            HangError: The store has not answered for too long.
        """
        if self._written is not None:
            self._written.wait()  # no join: Python 3.11 takes one that Ctrl-C ends for done
            self._written = None
            self._learn_decisions()
        aside, self._aside = self._aside, []
        if aside:
            names = ", ".join(repr(path.name) for path in aside)
            warn(
                f"the checkpoints after {self.last_name} are of before the training was "
                f"continued from an earlier one; they are set aside as {names}",
            )
        failure, self._failure = self._failure, None
        if failure is None:
            return
        if self._world.size == 1:  # several do not know yet whether all are to try again
            self.last_name = ""
        if self._checkpoints.on_error == "stop":
            raise CheckpointError(failure)
        if self._world.is_main:  # which knows the failures of all
            warn(f"{failure}; the training goes on without it")

    def _write(self, job: _Job) -> None:
        """Write a checkpoint, in a thread; `wait` reports its failure."""
        folder = Path(self._checkpoints.folder)
        unfinished = unfinished_path(folder, job.name)
        # Digests by file name, or the reason why there are none.
        report: Any = f"the checkpoint {job.name} is refused: {job.refusal}"
        if not job.refusal:
            try:
                report = {
                    part: asdict(write_file(unfinished, part, data))
                    for part, data in job.packed.items()
                }
            except Exception as error:  # rank 0 waits for a report in any case
                report = _describe_failure(job, folder, error)
        try:
            reports = self._exchange_reports(job, report)
        except HocketError as error:  # the store hangs
            self._failure = str(error)
            return
        flags = self._world.flags
        if reports is None:  # rank 0 finishes the checkpoint
            self._failure = report if isinstance(report, str) else None
            self._undecided.append((job.name, job.flag))
            return
        failures = [text for text in reports if isinstance(text, str)]
        if not failures:
            parts = {part: FileDigest(**digest) for part, digest in ChainMap(*reports).items()}
            try:
                finish_checkpoint(folder, job.name, replace(job.manifest, parts=parts))
                flags.set(_COMPLETE.format(job.flag))
                self._complete.append(folder / job.name)
                self._remove_older(folder, job.name)
                return
            except Exception as error:  # an exception would end the thread unseen
                failures = [_describe_failure(job, folder, error)]
        self._failure = "; ".join(dict.fromkeys(failures))
        # Unfinished files would fill the disk. A part that is still being written is removed
        # by its process.
        flags.set(_GIVEN_UP.format(job.flag))
        shutil.rmtree(unfinished, ignore_errors=True)

    def _remove_older(self, folder: Path, newest: str) -> None:
        """Remove all but the newest checkpoints, or warn that they stay."""
        reason = "it leads to another place than at the start"
        try:
            if folder.resolve() == self._place:
                self._aside += keep_newest(folder, self._checkpoints.keep, newest)
                return
        except OSError as error:
            reason = str(error.strerror)
        warn(f"cannot remove older checkpoints from {str(folder)!r}: {reason}")

    def _exchange_reports(self, job: _Job, report: Any) -> list[Any] | None:
        """Publish a report; return all processes' reports at rank 0, and None elsewhere."""
        world = self._world
        world.flags.set(job.flag, json.dumps(report))
        if not world.is_main:
            return None
        limit_s = world.slow_timeout_s
        clock = RunningClock(most_s=1.0)
        while (reports := world.flags.values(job.flag)) is None:
            ranks = range(world.size)
            if clock.seconds > limit_s and (
                late := [r for r in ranks if not world.flags.all_set(job.flag, ranks=[r])]
            ):
                return [
                    f"{world.names[late[0]]} has not written its part of the checkpoint "
                    f"{job.name} for {limit_s:g} s; if nothing hangs, increase slow_timeout_s"
                ]
            time.sleep(_POLL_S)
        return [json.loads(text) for text in reports]


def _describe_failure(job: _Job, folder: Path, error: Exception) -> str:
    """Return the message for a checkpoint that could not be written."""
    if isinstance(error, CheckpointError):
        return f"the checkpoint {job.name} is not complete: {error}"
    if not isinstance(error, OSError):
        return f"cannot write the checkpoint {job.name}: {type(error).__name__}: {error}"
    needed_mib = sum(map(len, job.packed.values())) / 2**20
    existing = next((p for p in (folder, *folder.parents) if os.path.exists(p)), folder)
    try:
        free_mib = f"{shutil.disk_usage(existing).free / 2**20:.1f} MiB"
    except OSError:  # the disk does not answer
        free_mib = "an unknown number"
    return (
        f"cannot write the checkpoint {job.name} to {str(folder)!r}: {error.strerror}; "
        f"{needed_mib:.1f} MiB are needed for {' and '.join(job.packed)}, and {free_mib} are "
        "free there"
    )

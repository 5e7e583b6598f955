"""Injection of the faults of a schedule into this process, each once.

The injector replaces the functions through which actions, packets and parts of checkpoints pass
while the training runs. A file for each fault records that it has happened, so that it does not
happen again after a restart.
"""

import ctypes
import errno
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch import Tensor, nn

from benchmarks.faults.fault import Fault
from benchmarks.faults.notes import take_due
from benchmarks.faults.packets import damage_packet, relabel_packet
from benchmarks.faults.processes import children_of, parent_of, wake_command
from benchmarks.faults.stranger import send_stranger
from hocket.checkpoint import writer
from hocket.checkpoint.directory import FileDigest
from hocket.distributed.folder.identity import current_identity
from hocket.distributed.network.sockets import own_sockets
from hocket.distributed.world import world
from hocket.engine import distributed, serial
from hocket.engine.event import Event, Watcher
from hocket.program import Action
from hocket.runs import metrics_log
from hocket.stage.stage import Stage
from hocket.transport.processes.message import OutgoingMessage

T = TypeVar("T")
PAUSE_S = 0.3
"""Seconds for which a process pauses, or a packet is delayed."""
SLOW_S = 3.0
"""Seconds that a slow disk, a slow loader or a suspension takes."""
CLOSING_S = 30.0
"""Seconds in which a reader has to close its pipe."""
CLOSE_OUTPUT = b"close this pipe\n"
"""Line after which the reader of the output closes its pipe."""
FOREVER_S = 10**6


class UserError(Exception):
    """An error in the code of a user's layer."""


class Injector:
    """The faults of one process.

    Args:
        faults: Faults of all stages.
        folder: Folder of the files that record the faults that have happened.
        rank: Rank of this process, which equals its stage.
    """

    def __init__(self, faults: Sequence[Fault], folder: Path, rank: int) -> None:
        self._faults = faults
        self._folder = folder
        self._rank = rank
        self._tick = 0
        self._first: tuple[int, float] | None = None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Context manager in which faults happen."""
        if kind := self._take_due(self._rank, 0, *_BEFORE_TRAINER):
            _BEFORE_TRAINER[kind]()
        patched: list[tuple[object, str, Callable[..., Any]]] = [
            (distributed, "execute", self._execute),
            (serial, "execute", self._execute),
            (OutgoingMessage, "begin", self._begin_send),
            (writer, "write_file", self._write_file),
            (writer, "finish_checkpoint", self._finish_checkpoint),
            (metrics_log, "_append_whole", self._append),
            (world, "form_without_strangers", self._form),
        ]
        with ExitStack() as stack:
            for owner, name, faulty in patched:
                wrapped = _wrap(faulty, getattr(owner, name))
                stack.enter_context(patch.object(owner, name, wrapped))
            yield

    @property
    def span(self) -> dict[str, float] | None:
        """The ``first`` tick of this process, its ``time``, and the ``last`` tick."""
        if self._first is None:
            return None
        return {"first": self._first[0], "time": self._first[1], "last": self._tick}

    def _take_due(self, stage: int, tick: int, *kinds: str) -> str | None:
        """Return the kind of a fault that is due now, and record that it has happened."""
        return take_due(self._folder, self._faults, stage, tick, kinds, now=self._tick)

    def loader(self, batches: Sequence[T]) -> "SlowLoader[T]":
        """Return a loader of batches that is slow when that fault is due."""
        return SlowLoader(batches, self._before_batch)

    def _before_batch(self) -> None:
        if self._take_due(self._rank, self._tick, "slow loader of"):
            time.sleep(SLOW_S)

    # What takes the place of a function; the first argument is that function.

    def _execute(
        self,
        original: Callable[..., Event],
        stage: Stage,
        action: Action,
        tick: int,
        watchers: Sequence[Watcher],
    ) -> Event:
        self._tick = tick
        self._first = self._first or (tick, time.monotonic())
        if kind := self._take_due(action.stage, tick, *_IN_PROCESS):
            _IN_PROCESS[kind]()
        if action.kind == "F" and (kind := self._take_due(action.stage, tick, *_IN_LAYER)):
            _IN_LAYER[kind](stage.module)
        return original(stage, action, tick, watchers)

    def _begin_send(
        self,
        original: Callable[[OutgoingMessage], Callable[[], None]],
        message: OutgoingMessage,
    ) -> Callable[[], None]:
        if message.kind not in ("activation", "gradient"):
            return original(message)
        kind = self._take_due(self._rank, self._tick, *_PACKETS)
        changed = _PACKETS[kind](message) if kind is not None else [message]
        finishes = [original(one) for one in changed]

        def finish() -> None:
            for finish_one in finishes:
                finish_one()

        return finish

    def _write_file(
        self, original: Callable[..., FileDigest], folder: Path, name: str, data: memoryview
    ) -> FileDigest:
        stage = int(name.removeprefix("stage").removesuffix(".pt"))
        kinds = ("kill writing of", "fill disk of", "slow disk of")
        kind = self._take_due(stage, _parse_tick(folder.name), *kinds)
        if kind == "kill writing of":
            original(folder, name, data[: len(data) // 2])
            _kill()
        elif kind == "fill disk of":
            original(folder, name, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        elif kind == "slow disk of":
            time.sleep(SLOW_S)
        return original(folder, name, data)

    def _finish_checkpoint(
        self, original: Callable[..., None], folder: Path, name: str, manifest: Any
    ) -> None:
        if self._take_due(self._rank, _parse_tick(name), "kill sealing of"):
            _kill()
        original(folder, name, manifest)

    def _append(self, original: Callable[..., None], file: FileIO, row: bytes) -> None:
        if not self._take_due(self._rank, self._tick, "fill metrics of"):
            original(file, row)
            return
        with open("/dev/full", "wb", buffering=0) as full:
            original(full, row)

    def _form(
        self, original: Callable[..., Any], form: Callable[[], Any], *place: Any, **names: Any
    ) -> Any:
        def form_and_wait() -> Any:
            before = _listening_ports()
            groups = form()
            if kind := self._take_due(self._rank, 0, *_STRANGERS):
                new = _listening_ports() - before
                if not send_stranger(new, sends=_STRANGERS[kind]):
                    raise RuntimeError(f"no stranger could connect to the ports {new}")
            return groups

        return original(form_and_wait, *place, **names)


def _wrap(faulty: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function, which may become a method, that passes the original one on."""
    return lambda *values, **names: faulty(original, *values, **names)


class SlowLoader(list[T]):
    """Loader of a user, which is none of Hocket's own, with a call before each batch."""

    def __init__(self, batches: Sequence[T], before_batch: Callable[[], None]) -> None:
        super().__init__(batches)
        self._before_batch = before_batch

    def __iter__(self) -> Iterator[T]:
        for batch in super().__iter__():
            self._before_batch()
            yield batch


def _parse_tick(name: str) -> int:
    """Parse the tick of a checkpoint from the name of its folder."""
    (digits,) = re.findall(r"tick-(\d+)-", name)
    return int(digits)


# Faults of a process.


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _pause() -> None:
    """Stop this process; another process continues it."""
    with subprocess.Popen(wake_command(PAUSE_S, os.getpid())):
        _stop()


def _suspend_job() -> None:
    """Stop all processes of the launch and the launcher; another process continues them."""
    server = os.getppid()
    others = {parent_of(server), server, *children_of(server)} - {os.getpid()}
    pids = [*others, os.getpid()]
    with subprocess.Popen(wake_command(SLOW_S, *pids)):
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)


def _terminate_job() -> None:
    for pid in children_of(os.getppid()):
        os.kill(pid, signal.SIGTERM)


def _launch_folder() -> Path:
    identity = current_identity()
    assert identity is not None, "faults happen to processes of a launch"
    assert identity.launch_folder is not None, "faults happen to processes of a launch"
    return identity.launch_folder.path


def _lose_rendezvous() -> None:
    folder = _launch_folder()
    # Renaming is atomic, while other processes write there.
    shutil.rmtree(folder.rename(folder.with_name(f"{folder.name}-lost")))


def _fill_rendezvous() -> None:
    """Let all writes to the files of the launch's folder fail, as on a full disk."""
    folder = _launch_folder()
    for name in ("probe", "rendezvous"):
        link = folder / f"full-{name}"
        link.symlink_to("/dev/full")
        link.rename(folder / name)


def _close_output() -> None:
    """Ask the reader of the output to close its pipe, and wait until it has.

    Raises:
        RuntimeError: It has not.
    """
    end_s = time.monotonic() + CLOSING_S
    sent = CLOSE_OUTPUT
    while time.monotonic() < end_s:
        try:
            os.write(1, sent)
        except BrokenPipeError:
            return
        sent = b"\n"
        time.sleep(0.01)
    raise RuntimeError(f"the output was not closed within {CLOSING_S:g} s")


def _listening_ports() -> set[int]:
    return {int(each.local_port, 16) for each in own_sockets() if each.listening}


def _intrude() -> None:
    ports = _listening_ports()
    if not ports:
        raise RuntimeError("this process listens on no port")
    if connections := send_stranger(ports, sends=True):
        raise RuntimeError(f"a stranger has made {connections} connections to {ports}")


_BEFORE_TRAINER: dict[str, Callable[[], None]] = {
    "stop building of": _stop,
    "lose rendezvous of": _lose_rendezvous,
}
_IN_PROCESS: dict[str, Callable[[], object]] = {
    "kill": _kill,
    "stop": _stop,
    "pause": _pause,
    "suspend job of": _suspend_job,
    "hold interpreter of": lambda: ctypes.PyDLL(None).sleep(FOREVER_S),
    "hang": lambda: threading.Event().wait(),
    "terminate": lambda: signal.raise_signal(signal.SIGTERM),
    "terminate job of": _terminate_job,
    "lose rendezvous of": _lose_rendezvous,
    "fill rendezvous of": _fill_rendezvous,
    "close output of": _close_output,
    "intrude at ports of": _intrude,
}
_STRANGERS = {"scan new ports of": False, "intrude at new ports of": True}
"""Strangers at the start by whether they send anything."""


# Faults of a layer.


def _raise_in_layer(module: nn.Module) -> None:
    def fail(*_: Any) -> None:
        raise UserError("on purpose")

    module.register_forward_pre_hook(fail)


def _make_nan(module: nn.Module) -> None:
    def spoil(_: nn.Module, __: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda gradient: gradient * float("nan"))

    module.register_forward_hook(spoil)


_IN_LAYER: dict[str, Callable[[nn.Module], object]] = {
    "raise in": _raise_in_layer,
    "exhaust memory of": lambda module: module.register_forward_pre_hook(
        lambda *_: torch.empty(2**60, dtype=torch.uint8) and None
    ),
    "make NaN in": _make_nan,
}


# Faults of a packet.


def _delay(message: OutgoingMessage) -> list[OutgoingMessage]:
    time.sleep(PAUSE_S)
    return [message]


_PACKETS: dict[str, Callable[[OutgoingMessage], list[OutgoingMessage]]] = {
    "drop packet of": lambda message: [],
    "double packet of": lambda message: [message, message],
    "mislabel packet of": lambda message: [relabel_packet(message, message.number + 1)],
    "damage packet of": lambda message: [damage_packet(message)],
    "delay packet of": _delay,
}

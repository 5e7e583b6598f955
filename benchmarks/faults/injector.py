"""Injection of the faults of a schedule into this process, each once.

The injector replaces the functions through which actions, packets and parts of checkpoints pass
while the training runs. A file for each fault records that it has happened, so that it does not
happen again after a restart.
"""

import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from benchmarks.faults.fault import Fault
from benchmarks.faults.packets import damage_packet, relabel_packet
from hocket.checkpoint import writer
from hocket.checkpoint.directory import FileDigest
from hocket.distributed.identity import current_identity
from hocket.engine import distributed, serial
from hocket.engine.event import Event, Watcher
from hocket.program import Action
from hocket.stage.report import ActionReport
from hocket.stage.stage import Stage
from hocket.transport.connection import OutgoingMessage

PAUSE_S = 0.3
"""Seconds for which a process pauses, or a packet is delayed."""
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
        if self._take_due(self._rank, 0, "lose rendezvous of"):
            _lose_rendezvous()
        patched: list[tuple[object, str, Callable[[Any], Callable[..., Any]]]] = [
            (distributed, "execute", self._wrap_execute),
            (serial, "execute", self._wrap_execute),
            (OutgoingMessage, "begin", self._wrap_send),
            (writer, "write_file", self._wrap_write),
            (writer, "finish_checkpoint", self._wrap_publish),
        ]
        with ExitStack() as stack:
            for owner, name, wrap in patched:
                wrapped = wrap(getattr(owner, name))
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
        for number, fault in enumerate(self._faults):
            if fault.stage != stage or fault.tick > tick or fault.kind not in kinds:
                continue
            note = json.dumps({"tick": self._tick, "time": time.monotonic()})
            try:
                with (self._folder / f"fault-{number}.json").open("x") as file:
                    file.write(note)
            except FileExistsError:
                continue
            return fault.kind
        return None

    def _wrap_execute(self, original: Callable[..., Event]) -> Callable[..., Event]:
        def execute(
            stage: Stage,
            action: Action,
            tick: int,
            watchers: Sequence[Watcher],
            do: Callable[[int], ActionReport] | None = None,
        ) -> Event:
            self._tick = tick
            self._first = self._first or (tick, time.monotonic())
            kind = self._take_due(action.stage, tick, *_IN_PROCESS)
            if kind is not None:
                _IN_PROCESS[kind]()
            if action.kind == "F" and (kind := self._take_due(action.stage, tick, *_IN_LAYER)):
                _IN_LAYER[kind](stage.module)
            return original(stage, action, tick, watchers, do)

        return execute

    def _wrap_send(
        self, original: Callable[[OutgoingMessage], Callable[[], None]]
    ) -> Callable[[OutgoingMessage], Callable[[], None]]:
        def begin(message: OutgoingMessage) -> Callable[[], None]:
            if message.kind not in ("activation", "gradient"):
                return original(message)
            kind = self._take_due(self._rank, self._tick, *_PACKETS)
            changed = _PACKETS[kind](message) if kind is not None else [message]
            finishes = [original(one) for one in changed]

            def finish() -> None:
                for finish_one in finishes:
                    finish_one()

            return finish

        return begin

    def _wrap_write(self, original: Callable[..., FileDigest]) -> Callable[..., FileDigest]:
        def write(folder: Path, name: str, data: memoryview) -> FileDigest:
            stage = int(name.removeprefix("stage").removesuffix(".pt"))
            kind = self._take_due(
                stage, _parse_tick(folder.name), "kill writing of", "fill disk of"
            )
            if kind == "kill writing of":
                original(folder, name, data[: len(data) // 2])
                _kill()
            elif kind == "fill disk of":
                folder.mkdir(parents=True, exist_ok=True)
                (folder / name).symlink_to("/dev/full")
            return original(folder, name, data)

        return write

    def _wrap_publish(self, original: Callable[..., Path]) -> Callable[..., Path]:
        def publish(folder: Path, name: str, manifest: Any) -> Path:
            if self._take_due(self._rank, _parse_tick(name), "kill sealing of"):
                _kill()
            return original(folder, name, manifest)

        return publish


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
    wake = f"sleep {PAUSE_S}; kill -CONT {os.getpid()}"
    with subprocess.Popen(["sh", "-c", wake]):
        _stop()


def _hold_interpreter() -> None:
    ctypes.PyDLL(None).sleep(FOREVER_S)


def _hang() -> None:
    threading.Event().wait()


def _terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def _lose_rendezvous() -> None:
    identity = current_identity()
    assert identity is not None, "faults happen to processes of a launch"
    store: Any = identity.store
    folder = Path(store.underlying_store.path).parent
    # Renaming is atomic, while other processes write there.
    shutil.rmtree(folder.rename(folder.with_name(f"{folder.name}-lost")))


_IN_PROCESS: dict[str, Callable[[], None]] = {
    "kill": _kill,
    "stop": _stop,
    "pause": _pause,
    "hold interpreter of": _hold_interpreter,
    "hang": _hang,
    "terminate": _terminate,
    "lose rendezvous of": _lose_rendezvous,
}


# Faults of a layer.


def _raise_in_layer(module: nn.Module) -> None:
    def fail(*_: Any) -> None:
        raise UserError("on purpose")

    module.register_forward_pre_hook(fail)


def _exhaust_memory(module: nn.Module) -> None:
    module.register_forward_pre_hook(lambda *_: torch.empty(2**60, dtype=torch.uint8) and None)


def _make_nan(module: nn.Module) -> None:
    def spoil(_: nn.Module, __: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda gradient: gradient * float("nan"))

    module.register_forward_hook(spoil)


_IN_LAYER: dict[str, Callable[[nn.Module], None]] = {
    "raise in": _raise_in_layer,
    "exhaust memory of": _exhaust_memory,
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

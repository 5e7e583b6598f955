"""Makes the faults of a schedule happen in this process, each once, by stage and tick.

It replaces the few functions through which actions, packets and parts of checkpoints pass, for
as long as its training lasts. A file for each fault says that it has happened, so that a job
that is started again does not meet it again.
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
from benchmarks.faults.packets import damaged, mislabelled
from hocket.checkpoint import writer
from hocket.checkpoint.directory import Seal
from hocket.distributed.identity import identity
from hocket.engine import distributed, serial
from hocket.engine.event import Event, Watcher
from hocket.program import Action
from hocket.stage.report import Report
from hocket.stage.stage import Stage
from hocket.transport.connection import OutgoingMessage

A_LITTLE_S = 0.3
"""How long a process pauses, or a packet is held back."""
FOR_EVER_S = 10**6


class UserError(Exception):
    """What the code of a user's layer raises."""


class Injector:
    """The faults of one process.

    Args:
        faults: Those of all stages.
        folder: Where it is noted what has happened.
        rank: Of this process, which is its stage; packets that it sends are the stage's.
    """

    def __init__(self, faults: Sequence[Fault], folder: Path, rank: int) -> None:
        self._faults = faults
        self._folder = folder
        self._rank = rank
        self._now = 0
        self._begun: tuple[int, float] | None = None

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Inside, what is due happens."""
        if self._due(self._rank, 0, "lose rendezvous of"):
            _lose_rendezvous()
        places: list[tuple[object, str, Callable[[Any], Callable[..., Any]]]] = [
            (distributed, "execute", self._executing),
            (serial, "execute", self._executing),
            (OutgoingMessage, "begin", self._sending),
            (writer, "write_file", self._writing),
            (writer, "seal", self._sealing),
        ]
        with ExitStack() as stack:
            for owner, name, around in places:
                other = around(getattr(owner, name))
                stack.enter_context(patch.object(owner, name, other))
            yield

    @property
    def span(self) -> dict[str, float] | None:
        """The ``first`` tick of this process, the ``time`` of that, and the ``last`` tick."""
        if self._begun is None:
            return None
        return {"first": self._begun[0], "time": self._begun[1], "last": self._now}

    def _due(self, stage: int, tick: int, *kinds: str) -> str | None:
        """The kind of a fault that is to happen now; it is taken to have happened."""
        for number, fault in enumerate(self._faults):
            if fault.stage != stage or fault.tick > tick or fault.kind not in kinds:
                continue
            note = json.dumps({"tick": self._now, "time": time.monotonic()})
            try:
                with (self._folder / f"fault-{number}.json").open("x") as file:
                    file.write(note)
            except FileExistsError:
                continue
            return fault.kind
        return None

    def _executing(self, own: Callable[..., Event]) -> Callable[..., Event]:
        def execute(
            stage: Stage,
            action: Action,
            now: int,
            watchers: Sequence[Watcher],
            do: Callable[[int], Report] | None = None,
        ) -> Event:
            self._now = now
            self._begun = self._begun or (now, time.monotonic())
            kind = self._due(action.stage, now, *_IN_PROCESS)
            if kind is not None:
                _IN_PROCESS[kind]()
            if action.kind == "F" and (kind := self._due(action.stage, now, *_IN_LAYER)):
                _IN_LAYER[kind](stage.module)
            return own(stage, action, now, watchers, do)

        return execute

    def _sending(
        self, own: Callable[[OutgoingMessage], Callable[[], None]]
    ) -> Callable[[OutgoingMessage], Callable[[], None]]:
        def begin(shipment: OutgoingMessage) -> Callable[[], None]:
            if shipment.kind not in ("activation", "gradient"):
                return own(shipment)
            kind = self._due(self._rank, self._now, *_PACKETS)
            changed = _PACKETS[kind](shipment) if kind is not None else [shipment]
            finishes = [own(one) for one in changed]

            def finish() -> None:
                for each in finishes:
                    each()

            return finish

        return begin

    def _writing(self, own: Callable[..., Seal]) -> Callable[..., Seal]:
        def write(folder: Path, name: str, data: memoryview) -> Seal:
            stage = int(name.removeprefix("stage").removesuffix(".pt"))
            kind = self._due(stage, _tick_of(folder.name), "kill writing of", "fill disk of")
            if kind == "kill writing of":
                own(folder, name, data[: len(data) // 2])
                _kill()
            elif kind == "fill disk of":
                folder.mkdir(parents=True, exist_ok=True)
                (folder / name).symlink_to("/dev/full")
            return own(folder, name, data)

        return write

    def _sealing(self, own: Callable[..., Path]) -> Callable[..., Path]:
        def publish(folder: Path, name: str, manifest: Any) -> Path:
            if self._due(self._rank, _tick_of(name), "kill sealing of"):
                _kill()
            return own(folder, name, manifest)

        return publish


def _tick_of(name: str) -> int:
    """The tick of a checkpoint, by the name of its folder."""
    (digits,) = re.findall(r"tick-(\d+)-", name)
    return int(digits)


# What happens to a process.


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _pause() -> None:
    """Stopped by itself, it needs somebody else to be continued by."""
    wake = f"sleep {A_LITTLE_S}; kill -CONT {os.getpid()}"
    with subprocess.Popen(["sh", "-c", wake]):
        _stop()


def _hold() -> None:
    ctypes.PyDLL(None).sleep(FOR_EVER_S)


def _hang() -> None:
    threading.Event().wait()


def _terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def _lose_rendezvous() -> None:
    place = identity()
    assert place is not None, "faults happen to processes of a launch"
    store: Any = place.store
    folder = Path(store.underlying_store.path).parent
    # All at once: others write there.
    shutil.rmtree(folder.rename(folder.with_name(f"{folder.name}-lost")))


_IN_PROCESS: dict[str, Callable[[], None]] = {
    "kill": _kill,
    "stop": _stop,
    "pause": _pause,
    "hold interpreter of": _hold,
    "hang": _hang,
    "terminate": _terminate,
    "lose rendezvous of": _lose_rendezvous,
}


# What happens in a layer of the user's.


def _raise(module: nn.Module) -> None:
    def fail(*_: Any) -> None:
        raise UserError("on purpose")

    module.register_forward_pre_hook(fail)


def _exhaust(module: nn.Module) -> None:
    module.register_forward_pre_hook(lambda *_: torch.empty(2**60, dtype=torch.uint8) and None)


def _spoil(module: nn.Module) -> None:
    def spoil(_: nn.Module, __: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda gradient: gradient * float("nan"))

    module.register_forward_hook(spoil)


_IN_LAYER: dict[str, Callable[[nn.Module], None]] = {
    "raise in": _raise,
    "exhaust memory of": _exhaust,
    "make NaN in": _spoil,
}


# What happens to a packet.


def _delayed(shipment: OutgoingMessage) -> list[OutgoingMessage]:
    time.sleep(A_LITTLE_S)
    return [shipment]


_PACKETS: dict[str, Callable[[OutgoingMessage], list[OutgoingMessage]]] = {
    "drop packet of": lambda shipment: [],
    "double packet of": lambda shipment: [shipment, shipment],
    "mislabel packet of": lambda shipment: [mislabelled(shipment, shipment.number + 1)],
    "damage packet of": lambda shipment: [damaged(shipment)],
    "delay packet of": _delayed,
}

"""Worlds that this process has joined, and its way out of all of them."""

import atexit
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from inspect import getclosurevars
from io import StringIO
from typing import Any
from weakref import WeakValueDictionary

from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import PrefixStore, Store, default_pg_timeout
from torch.distributed.rendezvous import rendezvous

from hocket.distributed.failures.first_failure import (
    describe_failure,
    is_marked,
    mark,
    record_first_failure,
)
from hocket.distributed.failures.phases import TimeLimits
from hocket.distributed.failures.store_client import ask_store, connect_again, leave_store
from hocket.distributed.folder.identity import ProcessIdentity, current_identity
from hocket.distributed.folder.last_words import flush_files, write_last_words
from hocket.distributed.folder.launch_folder import Note
from hocket.distributed.folder.process_state import leave_gloo
from hocket.distributed.folder.restart import environment_number, torchrun_restart_count
from hocket.distributed.network.network_interface import INTERFACE_VARIABLE, find_interface
from hocket.distributed.network.strangers import form_default_group
from hocket.distributed.world.solo_world import SoloWorld
from hocket.distributed.world.world import World, close_abandoned_worlds
from hocket.errors import HangError, PeerFailedError, PeerLostError, WorldError

EXIT_TIMEOUT_S = 30.0
"""Seconds that a process waits at its end for threads that are in a library."""


@dataclass
class _Joined:
    """Worlds of this process.

    Attributes:
        count: Number of worlds that it has begun to join; the same in all processes.
        groups: Number of default groups that were formed for them.
        worlds: Those that are in use, by number.
    """

    count: int = 0
    groups: int = 0
    worlds: WeakValueDictionary[int, World] = field(default_factory=WeakValueDictionary)


_joined = _Joined()
_VERDICTS = (object(), object())
"""Marks of errors that were told: of one that was no first failure, and of one that was."""


def join_world(
    stages: int, replicas: int, timeout_s: float, slow_timeout_s: float
) -> World | SoloWorld:
    """Join the processes of this training; alone, this process gets a `SoloWorld`.

    The processes that torchrun or ``hocket launch`` has started form a world; a default group
    that the caller has initialized is used as it is.

    Args:
        stages: Number of stages, K.
        replicas: Number of processes that share the batches of a stage, R.
        timeout_s: Seconds that an action of a process may keep another one waiting.
        slow_timeout_s: The same for a phase that is no training step.

    Raises:
        WorldError: There are not K times R processes, or they cannot meet.
    """
    # Form a default group, unless a launcher or the caller has.
    if current_identity() is None and (size := environment_number("WORLD_SIZE", 1)) != 1:
        if (interface := find_interface(os.environ)) is not None:
            os.environ[INTERFACE_VARIABLE] = interface
        # Meet the others in the store that the environment names.
        try:
            if not 0 <= environment_number("RANK", 0) < size:
                raise WorldError("RANK has to be at least 0, and below WORLD_SIZE")
            store, rank, size = next(rendezvous("env://"))
        except (ValueError, RuntimeError) as error:
            names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
            given = ", ".join(f"{name}={os.environ.get(name, '(not set)')}" for name in names)
            raise WorldError(
                f"the processes cannot meet ({given}): {error}; start them by torchrun, by "
                "hocket launch, or with all four variables and a free port"
            ) from error
        # torchrun keeps its store when it restarts its processes, with the addresses of those
        # that are gone; and so it does when the caller has destroyed a group.
        fresh = PrefixStore(f"attempt {torchrun_restart_count()}/{_joined.groups}", store)
        _joined.groups += 1
        # With torch's own time-out: a process that takes long to start does not hang.
        form_default_group(fresh, rank, size, default_pg_timeout.total_seconds())

    # Prepare the way out, once.
    identity = current_identity()
    if identity is None or identity.size == 1:
        return SoloWorld(replicas)
    if not _joined.count:
        atexit.register(_leave_before_exit)
        hook: Any = sys.excepthook
        # That of torch puts the rank before each line of the one that was there before.
        while getattr(hook, "__module__", "") == distributed_c10d.__name__:
            hook = getclosurevars(hook).nonlocals.get("old_hook", sys.__excepthook__)
        sys.excepthook = partial(_report_uncaught, hook)
        name = "hocket-closer"
        threading.Thread(target=close_abandoned_worlds, name=name, daemon=True).start()

    # Join.
    store = connect_again(_next_store(identity))  # torch waits in its own while groups form
    _joined.count += 1
    try:
        limits = TimeLimits(timeout_s, slow_timeout_s)
        world = World(stages, replicas, limits, store, identity)
    except BaseException as error:
        if not isinstance(error, PeerFailedError):
            # A world has recorded its own errors: later ones would be a PeerFailedError.
            recorded = isinstance(error, (HangError, PeerLostError))
            mark(error, _VERDICTS[recorded or _is_first(store, identity, error)])
        raise
    _joined.worlds[_joined.count] = world
    return world


def _is_first(store: Store, identity: ProcessIdentity, error: BaseException) -> bool:
    """Record an error in the store of a world; return True if no other one was there."""
    message = describe_failure(f"process {identity.rank}", error)
    first, _ = ask_store(lambda: record_first_failure(store, message))
    return first in (None, message)


def shutdown() -> None:
    """Leave all worlds that this process has joined, in good order."""
    for _, world in sorted(_joined.worlds.items(), reverse=True):
        world.close()


def _leave_before_exit() -> None:
    """Leave all worlds, their stores and their groups, before the interpreter ends."""
    shutdown()
    leave_store(EXIT_TIMEOUT_S)
    leave_gloo(EXIT_TIMEOUT_S)


def is_main() -> bool:
    """Return True in the process that should print and write files."""
    identity = current_identity()
    return identity is None or identity.rank == 0


def report_failure(error: BaseException) -> bool:
    """Tell the others why this process ends; return True if it is the first that failed."""
    if isinstance(error, PeerFailedError):
        return False
    for first, verdict in enumerate(_VERDICTS):
        if is_marked(error, verdict):
            return bool(first)

    # Tell those that train with this process.
    worlds = [
        world
        for _, world in sorted(_joined.worlds.items())
        # Skip trainings that have ended, normally or by an error that was caught.
        if world.failures.record.has_ended_by(error)
        or not (world.left or world.failures.record.has_ended)
    ]
    firsts = [world.failures.record.report(error) for world in worlds]
    # The newest world decides. Who was first there tells those that wait for this process to
    # join the next one.
    is_first, identity = not firsts or firsts[-1], current_identity()
    if is_first and identity is not None:
        is_first = _is_first(_next_store(identity), identity, error)
    mark(error, _VERDICTS[is_first])
    return is_first


def report_symptom(error: BaseException, text: str) -> bool:
    """Leave the text of an error to the launcher if another process may know its cause.

    Returns:
        False if there is no launcher, or the error is a cause: the text is to be printed here.
    """
    identity = current_identity()
    if identity is None or identity.launch_folder is None:
        return False
    if not isinstance(error, (PeerLostError, HangError)):
        return False
    identity.launch_folder.write(Note.SYMPTOM, text=text)
    return True


def exit_process(code: int) -> None:
    """End this process with an exit code if it has joined a world; otherwise do nothing.

    sys.exit would not do: threads that wait for packets would keep the process alive.
    """
    if not _joined.count:
        return
    flush_files()
    os._exit(code)


def interrupt_code(error: KeyboardInterrupt) -> int:
    """Return the exit code of a process that ends by a signal, which the error may name."""
    number = error.args[0] if error.args else signal.SIGINT
    return 128 + (number if isinstance(number, int) else signal.SIGINT)


def _next_store(identity: ProcessIdentity) -> Store:
    """Return the store of the next training, which holds no failures of earlier ones."""
    return PrefixStore(f"hocket/{_joined.count}", identity.store)


def _report_uncaught(
    hook: Callable[..., object], kind: type[BaseException], error: BaseException, trace: object
) -> None:
    """Report an uncaught error to the other processes, print it, and end this process.

    A hook of the user's is called instead of printing.
    """
    if isinstance(sys.stderr, StringIO):  # of torch's hook, which would be lost with the exit
        sys.stderr = sys.__stderr__
    if report_failure(error):
        lines = traceback.format_exception(error)
        code = int(getattr(kind, "exit_code", 1))
    else:
        lines, code = traceback.format_exception_only(error), PeerFailedError.exit_code
    if hook is not sys.__excepthook__:
        try:
            hook(kind, error, trace)
            lines = []
        except Exception as failure:
            lines += traceback.format_exception(failure)
    if lines:
        write_last_words("".join(lines))
    exit_process(interrupt_code(error) if isinstance(error, KeyboardInterrupt) else code)

"""Orderly end of a training on Ctrl-C: the first signal asks for it, a second one forces it.

A signal to all processes of a job reaches each of them twice, as its launcher passes it on. So
among several processes a second signal does nothing: the launcher kills processes that do not
end. A batch that is being read when the first signal comes is given up: reading may take
longer than the process has to end in good order.

Such a signal also ends the workers of a loader, maybe first. PyTorch
raises an error for that wherever the main thread is; it is held back to the end of a tick.
"""

import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any, Self, TypeVar

from hocket.distributed.folder.identity import current_identity
from hocket.distributed.folder.restart import STOP_SIGNALS
from hocket.distributed.world.common_end import CommonEnd

T = TypeVar("T")

SIGNAL_FOLLOWS_S = 1.0
"""Seconds after the end of a loader's worker within which the process gets the same signal."""

before_batch: ContextVar[Callable[[], int]] = ContextVar("before_batch", default=lambda: 0)
"""Called before a batch is read; returns the number of a signal that came in another thread."""


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that ask for an end; under ``nohup`` not SIGHUP."""
    return STOP_SIGNALS[:2] + heard(STOP_SIGNALS[2:])


def heard(signals: Sequence[signal.Signals]) -> tuple[signal.Signals, ...]:
    """Return the signals that are not ignored; in the background SIGINT is ignored."""
    return tuple(n for n in signals if signal.getsignal(n) is not signal.SIG_IGN)


class _ReadingGivenUpError(KeyboardInterrupt):
    """A first signal came while a batch was read; loaders that catch errors do not catch it."""


class Interrupt:
    """Context manager in which a first signal only sets ``asked``.

    A second one raises KeyboardInterrupt; among several processes it is ignored, afterwards as
    well. Signals reach the main thread only; `before_batch` can tell others of them.

    Attributes:
        asked: Number of the signal that came; 0 if none did.
    """

    def __init__(self, signals: Sequence[signal.Signals] = (signal.SIGINT,)) -> None:
        self.asked = 0
        self._reading = False  # a batch that may be given up
        self._lost_worker: RuntimeError | None = None  # the error of PyTorch
        self._signals = signals
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {n: signal.signal(n, self._ask) for n in self._signals}
        return self

    def __exit__(self, *_: object) -> None:
        if self.asked and current_identity() is not None:
            self._before |= dict.fromkeys(
                self._before.keys() - {signal.SIGCHLD}, signal.SIG_IGN
            )
        for number, before in self._before.items():
            # None is a handler that was not set from Python, and cannot be set again.
            signal.signal(number, before or signal.SIG_DFL)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            if current_identity() is not None:
                return
            raise KeyboardInterrupt(number)
        self.asked = number
        self._hold_back_lost_workers()
        if self._reading:
            raise _ReadingGivenUpError(number)

    def _hold_back_lost_workers(self) -> None:
        """Keep the error of a worker that ended until the tick is done."""
        if not hasattr(signal, "SIGCHLD"):  # Windows tells PyTorch nothing either
            return
        raise_error = signal.getsignal(signal.SIGCHLD)
        in_main_thread = threading.current_thread() is threading.main_thread()
        if not callable(raise_error) or raise_error == self._note_worker or not in_main_thread:
            return
        self._before[signal.SIGCHLD] = raise_error
        signal.signal(signal.SIGCHLD, self._note_worker)

    def _note_worker(self, number: int, frame: FrameType | None) -> None:
        try:
            self._before[signal.SIGCHLD](number, frame)
        except RuntimeError as error:
            self._lost_worker = error
            if self._reading and not self.asked:
                raise

    def _is_asked_too(self) -> bool:
        """Return True if a signal that has ended a worker of a loader reaches this process."""
        end = time.monotonic() + SIGNAL_FOLLOWS_S
        while not self.asked and time.monotonic() < end:
            time.sleep(0.01)
        return bool(self.asked)

    def until_asked(self, batches: Iterable[T], shared: CommonEnd | None = None) -> Iterator[T]:
        """Return the batches until a first signal.

        Args:
            batches: The batches.
            shared: The end on which replicas agree, as signals reach them one by one; a new
                one for each call. None without replicas, to stop at once, even while a batch
                is read.

        Raises:
            RuntimeError: A worker of the loader has ended.
        """
        iterator = iter(batches)
        self._hold_back_lost_workers()
        # Read a batch, and give it up if a signal comes meanwhile.
        for number in itertools.count():
            if asked := before_batch.get()():  # and no 0, as this thread may get a signal here
                self.asked = asked
            try:
                try:
                    self._reading = shared is None
                    if self._reading and self.asked:  # during the tick before
                        return
                    if self._lost_worker is not None and not self.asked:
                        raise self._lost_worker
                    batch = next(iterator)
                finally:
                    self._reading = False
            except (StopIteration, _ReadingGivenUpError):
                return
            except RuntimeError:
                # Replicas have to agree first, for which batches are missing.
                lost = self._lost_worker is not None and shared is None
                if lost and self._is_asked_too():
                    return
                raise
            # Agree with the replicas on the batch at which all stop.
            if shared is not None and shared.reached(number, asked=bool(self.asked)):
                return
            yield batch


@contextmanager
def ctrl_c_held_back() -> Iterator[None]:
    """Context manager for a tick, at whose end the handler hears of a Ctrl-C within it."""
    before = signal.getsignal(signal.SIGINT)
    interrupt = Interrupt(() if before is signal.SIG_IGN else (signal.SIGINT,))
    try:
        with interrupt:
            yield
    finally:
        if interrupt.asked:
            (before if callable(before) else signal.default_int_handler)(interrupt.asked, None)

"""Orderly end of a training on Ctrl-C: the first signal asks for it, a second one forces it.

A batch that is being read when the first signal comes is given up: reading may take longer
than the process has to end in good order.
"""

import itertools
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from torch.distributed.distributed_c10d import Store

T = TypeVar("T")

AHEAD = 16
"""Batches between the one at which a replica is asked and the one at which all stop.

Replicas wait for each other's gradients, and are never that far apart.
"""


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that ask for an end; SIGHUP comes when a terminal is closed.

    Under ``nohup`` SIGHUP is ignored, and stays so.
    """
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *(() if ignored else (signal.SIGHUP,)))


def heard(signals: Sequence[signal.Signals]) -> tuple[signal.Signals, ...]:
    """Return those of the signals that are not ignored, as SIGINT is in the background."""
    return tuple(n for n in signals if signal.getsignal(n) is not signal.SIG_IGN)


class _ReadingGivenUpError(KeyboardInterrupt):
    """A first signal came while a batch was read; loaders that catch errors do not catch it."""


class Interrupt:
    """Context manager in which a first signal only sets ``asked``.

    A second one raises KeyboardInterrupt. Outside of the main thread, which is the only one
    that signals reach, it changes nothing.

    Args:
        signals: Signals that ask for the end.

    Attributes:
        asked: Number of the signal that came; 0 if none did.
    """

    def __init__(self, signals: Sequence[signal.Signals] = (signal.SIGINT,)) -> None:
        self.asked = 0
        self._reading = False  # a batch that may be given up
        self._signals = signals
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {n: signal.signal(n, self._ask) for n in self._signals}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, before in self._before.items():
            # None is a handler that was not set from Python; nobody can set it again.
            signal.signal(number, before or signal.SIG_DFL)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt(number)
        self.asked = number
        if self._reading:
            raise _ReadingGivenUpError(number)

    def until_asked(self, batches: Iterable[T], shared: Store | None = None) -> Iterator[T]:
        """Return the batches until a first signal.

        Args:
            batches: The batches.
            shared: Store in which replicas, which go through the same batches and may be
                asked one by one, agree on the last batch; a new one for each call. None
                without replicas, to stop at once, even while a batch is read.
        """
        iterator = iter(batches)
        for number in itertools.count():
            try:
                try:
                    self._reading = shared is None
                    if self._reading and self.asked:  # during the tick before
                        return
                    batch = next(iterator)
                finally:
                    self._reading = False
            except (StopIteration, _ReadingGivenUpError):
                return
            if shared is not None:
                if self.asked:
                    shared.compare_set("stop", "", str(number + AHEAD))
                if shared.check(["stop"]) and number >= int(shared.get("stop")):
                    return
            yield batch

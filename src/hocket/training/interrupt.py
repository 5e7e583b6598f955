"""Ctrl-C where a training is to end in good order: the first one asks for that, and no more."""

import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from torch.distributed.distributed_c10d import Store

T = TypeVar("T")

AHEAD = 16
"""Batches from the one at which a replica is asked to the one at which all stop.

Replicas wait for each other's gradients, and are never so far apart.
"""


class Interrupt:
    """Inside, a first signal only sets ``asked``; a second one raises KeyboardInterrupt.

    Outside of the main thread, which is the only one that signals reach, it changes nothing.

    Args:
        signals: Those that ask.

    Attributes:
        asked: The number of the signal that came; 0 if none did.
    """

    def __init__(self, signals: Sequence[signal.Signals] = (signal.SIGINT,)) -> None:
        self.asked = 0
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

    def until_asked(self, batches: Iterable[T], shared: Store | None = None) -> Iterator[T]:
        """The batches until a first signal.

        Args:
            batches: What to go through.
            shared: Where the replicas that all go through the same batches, and may be asked
                one by one, agree on the last one; fresh for each time. None for one that goes
                alone, which stops at once.
        """
        for number, batch in enumerate(batches):
            if shared is None:
                if self.asked:
                    return
            else:
                if self.asked:
                    shared.compare_set("stop", "", str(number + AHEAD))
                if shared.check(["stop"]) and number >= int(shared.get("stop")):
                    return
            yield batch

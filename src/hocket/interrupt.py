"""Ctrl-C among several processes: the first one asks for an end that all can reach together."""

import signal
import threading
from collections.abc import Iterable, Iterator
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from torch.distributed.distributed_c10d import Store

T = TypeVar("T")

AHEAD = 16
"""Batches from the one at which a replica is asked to the one at which all stop.

Replicas wait for each other's gradients, and are never so far apart.
"""


class Interrupt:
    """Inside, a first SIGINT only sets ``asked``; a second one raises KeyboardInterrupt.

    Outside of the main thread, which is the only one that signals reach, it changes nothing.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None
        self._installed = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._ask)
            self._installed = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._installed:
            # None is a handler that was not set from Python; nobody can set it again.
            signal.signal(signal.SIGINT, self._before or signal.SIG_DFL)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def until_asked(self, batches: Iterable[T], shared: Store | None = None) -> Iterator[T]:
        """The batches until a first Ctrl-C.

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

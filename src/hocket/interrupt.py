"""Ctrl-C among several processes: the first one asks for an end that all can reach together."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


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

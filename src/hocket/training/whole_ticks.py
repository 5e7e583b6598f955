"""Ticks that an error has cut short, after which the stages are at different places."""

from collections.abc import Iterator
from contextlib import contextmanager

from hocket.engine.engine import Engine
from hocket.errors import CheckpointError


class WholeTicks:
    """Takes note of the first tick that an error cuts short."""

    def __init__(self) -> None:
        self._cut_short = ""

    @contextmanager
    def during(self, engine: Engine) -> Iterator[None]:
        """Context manager of ticks; a later error is told of the one that came first.

        Args:
            engine: Engine that does the ticks.

        Raises:
            BaseException: A tick raised it.
        """
        try:
            yield
        except BaseException as error:
            if self._cut_short:
                error.add_note(f"({self._cut_short}; resume a new trainer)")
            else:
                name = type(error).__name__
                self._cut_short = f"tick {engine.tick_count} was cut short by {name}"
            raise

    def require(self) -> None:
        """Refuse the state after a tick that was cut short.

        Raises:
            CheckpointError: There was such a tick.
        """
        if self._cut_short:
            raise CheckpointError(
                f"{self._cut_short}, so the stages are at different places; resume from the "
                "checkpoint before"
            )

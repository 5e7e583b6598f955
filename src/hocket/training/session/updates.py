"""Listener to the updates of stages in a training."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hocket.engine.event import Event
from hocket.stage.stage import Stage


class UpdateWatcher:
    """Watcher that tells a listener of each update of a stage's weights, while there is one."""

    def __init__(self) -> None:
        self._listener: Callable[[Stage], None] | None = None

    def __call__(self, event: Event, stage: Stage) -> None:
        """Pass an update on."""
        updates = event.action.kind == "U" and not event.report.skipped
        if updates and self._listener is not None:
            self._listener(stage)

    @contextmanager
    def telling(self, listener: Callable[[Stage], None]) -> Iterator[None]:
        """Context manager in which a function is called after each update of a stage."""
        self._listener = listener
        try:
            yield
        finally:
            self._listener = None

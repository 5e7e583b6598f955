"""What an engine tells of a training: an event for every action it has executed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from hocket.program import Action
from hocket.stage.report import Report
from hocket.stage.stage import Stage


@dataclass(frozen=True)
class Event:
    """An executed action, the tick it fell into and its report."""

    tick: int
    action: Action
    report: Report


Watcher: TypeAlias = Callable[[Event, Stage], None]
"""Called after every action, when the stage still holds what the action left."""

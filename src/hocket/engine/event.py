"""Events of a training: one for every action that an engine has executed."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from hocket.program.action import Action
from hocket.stage.report import ActionReport
from hocket.stage.stage import Stage


class Event(NamedTuple):
    """An executed action, its tick and its report."""

    tick: int
    action: Action
    report: ActionReport


Watcher: TypeAlias = Callable[[Event, Stage], None]
"""Called after every action, while the stage still holds the results of the action."""

"""Events of a training: one for every action that an engine executes."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

import torch

from hocket.errors import NonFiniteError
from hocket.program.action import Action
from hocket.stage.report import ActionReport
from hocket.stage.stage import Stage

Given = TypeVar("Given")
Result = TypeVar("Result")


class Event(NamedTuple):
    """An executed action, its tick and its report."""

    tick: int
    action: Action
    report: ActionReport


Watcher: TypeAlias = Callable[[Event, Stage], None]
"""Called after every action, while the stage still holds the results of the action."""


def execute(
    stage: Stage,
    action: Action,
    tick: int,
    watchers: Sequence[Watcher],
    do: Callable[[Action], ActionReport] | None = None,
) -> Event:
    """Let a stage do an action, and tell the watchers.

    Args:
        stage: The stage.
        action: The action.
        tick: Number of the tick.
        watchers: Called afterwards.
        do: Does the action; None for ``stage.execute``.
    """
    event = Event(tick, action, perform(stage, action, tick, do or stage.execute, action))
    for watch in watchers:
        watch(event, stage)
    return event


def perform(
    stage: Stage, action: Action, tick: int, do: Callable[[Given], Result], given: Given
) -> Result:
    """Return the result of a function that does an action of a stage, or a step of it.

    Its time is recorded, and an error gets a note that names the action.

    Args:
        stage: The stage.
        action: The action.
        tick: Number of the tick.
        do: The function.
        given: Its argument.
    """
    if stage.late_check.postpones:
        stage.late_check.before(action, tick)
    recorder = stage.recorder
    recorder.begin(action.kind, action.batch, tick)
    try:  # and no context managers, as every action would enter them
        return do(given)
    except Exception as error:
        add_place(error, action, tick)
        raise
    finally:
        recorder.end()


def add_place(error: Exception, action: Action, tick: int) -> None:
    """Add a note to an error.

    Args:
        error: The error.
        action: Action that has failed.
        tick: Number of its tick.
    """
    if isinstance(error, NonFiniteError):
        if error.batch is not None:  # of an earlier action, which it names
            return
        error.batch = action.batch
    error.add_note(f"(stage {action.stage}, batch {action.batch}, tick {tick}: {action})")
    # PyTorch has no class for a lack of memory on a CPU.
    if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        error.add_note(
            "(memory is short: use smaller batches and accumulate more of them, a method that "
            "keeps fewer batches in flight, or precision='bf16')"
        )

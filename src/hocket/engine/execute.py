"""Execution of one action of one stage, with its time span, its errors and its watchers."""

from collections.abc import Callable, Sequence

from hocket.engine.event import Event, Watcher
from hocket.errors import NonFiniteError
from hocket.program import Action
from hocket.stage.report import ActionReport
from hocket.stage.stage import Stage


def execute(
    stage: Stage,
    action: Action,
    tick: int,
    watchers: Sequence[Watcher],
    do: Callable[[int], ActionReport] | None = None,
) -> Event:
    """Let a stage do an action; an error gets a note that names the action.

    Args:
        stage: The stage.
        action: The action.
        tick: Number of the tick.
        watchers: Called afterwards.
        do: Does the action to the batch of this number; None for ``stage.execute``.
    """
    if stage.late_check.postpones:
        stage.late_check.before(action, tick)
    try:
        with stage.recorder.span(action.kind, action.batch, tick):
            report = do(action.batch) if do is not None else stage.execute(action)
    except Exception as error:
        if isinstance(error, NonFiniteError):
            if error.batch is not None:  # of an earlier action, which it names
                raise
            error.batch = action.batch
        if "more than 1 value per channel" in str(error):  # said by PyTorch's BatchNorm
            error.add_note(
                "(the batch has one sample; leave it out: DataLoader(drop_last=True))"
            )
        error.add_note(f"(stage {action.stage}, batch {action.batch}, tick {tick}: {action})")
        raise
    event = Event(tick, action, report)
    for watch in watchers:
        watch(event, stage)
    return event

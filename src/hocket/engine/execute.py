"""One action of one stage: what it came to, where it failed, and who is told."""

from collections.abc import Callable, Sequence

from hocket.engine.event import Event, Watcher
from hocket.errors import NonFiniteError
from hocket.program import Action
from hocket.stage.report import Report
from hocket.stage.stage import Stage


def execute(
    stage: Stage,
    action: Action,
    now: int,
    watchers: Sequence[Watcher],
    do: Callable[[int], Report] | None = None,
) -> Event:
    """Have a stage do an action in a tick; an error says which one it was.

    Args:
        stage: The stage.
        action: What it is to do.
        now: The tick.
        watchers: Called afterwards.
        do: What does it to the batch, if not the stage's own ``execute``.
    """
    try:
        with stage.recorder.span(action.kind, action.batch, now):
            report = do(action.batch) if do is not None else stage.execute(action)
    except Exception as error:
        if isinstance(error, NonFiniteError):
            error.batch = action.batch
        error.add_note(f"(stage {action.stage}, batch {action.batch}, tick {now}: {action})")
        raise
    event = Event(now, action, report)
    for watch in watchers:
        watch(event, stage)
    return event

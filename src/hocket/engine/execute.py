"""Execution of one action of one stage, with its time span, its errors and its watchers."""

from collections.abc import Callable, Sequence

from hocket.engine.event import Event, Watcher
from hocket.errors import DataError, NonFiniteError
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
    with LocateErrors(action, tick), stage.recorder.span(action.kind, action.batch, tick):
        report = do(action.batch) if do is not None else stage.execute(action)
    event = Event(tick, action, report)
    for watch in watchers:
        watch(event, stage)
    return event


class LocateErrors:
    """Context manager that adds the place to an error; a class, as every action enters one.

    That a layer cannot train on one sample is an error of the data.

    Args:
        action: Action that may fail.
        tick: Number of its tick.
    """

    __slots__ = ("_action", "_tick")

    def __init__(self, action: Action, tick: int) -> None:
        self._action = action
        self._tick = tick

    def __enter__(self) -> None:
        """Do nothing before the action."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Add a note to an error.

        Raises:
            DataError: A batch has one sample, which a layer cannot train on.
        """
        if not isinstance(error, Exception):
            return
        if isinstance(error, NonFiniteError):
            if error.batch is not None:  # of an earlier action, which it names
                return
            error.batch = self._action.batch
        where = f"stage {self._action.stage}, batch {self._action.batch}, tick {self._tick}"
        place = f"({where}: {self._action})"
        if "more than 1 value per channel" not in str(error):  # said by PyTorch's BatchNorm
            error.add_note(place)
            return
        refusal = DataError(
            f"a batch of one sample cannot pass BatchNorm in training ({error}); use another "
            "batch size (--batch-size on the command line), so that the last batch has more, "
            "or leave it out: DataLoader(drop_last=True)"
        )
        refusal.add_note(place)
        raise refusal from error

"""Opening of a ``fit``: signals, progress, checkpoints and callbacks, until it has ended."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path

from hocket.stage.stage import Stage
from hocket.training.checkpoints.save import saving
from hocket.training.fit.fit import CommonEpochs, Fit, FitRequest, OwnEpochs
from hocket.training.fit.interrupt import Interrupt, heard, stop_signals
from hocket.training.fit_state import FitState
from hocket.training.results.progress_bar import progress_bar
from hocket.training.session.session import Session
from hocket.training.view import TrainerView


@contextmanager
def open_fit(
    request: FitRequest, trainer: TrainerView, session: Session, state: FitState
) -> Iterator[Fit]:
    """Context manager that gives a ``fit`` to run.

    Signals ask for an end, the progress is shown, checkpoints are written, and callbacks have
    started. A first Ctrl-C ends it after the current tick.

    Args:
        request: Arguments of the ``fit``.
        trainer: The trainer as callbacks see it.
        session: Network, stages, engine and world.
        state: Epochs and batches that are done already.

    Raises:
        CheckpointError: One cannot be written, and the training is to stop for that.
        DataError: They are not the data that the current epoch began with.
        OptionError: Checkpoints are wanted, and the trainer is not resumable.
        KeyboardInterrupt: A single process had to stop when all was done.
    """
    world, setup, length = session.world, session.setup, request.length
    # Compare the arguments of all processes.
    signals = stop_signals()
    with session.reporting_failures():
        request.require_same(session)
    # Foresee the length of the training, for the display.
    passes = request.budget.passes(length, setup.method.accumulate)
    if setup.stage_speeds is not None:  # the slowest stage has to do its budget, too
        speeds = setup.stage_speeds.speeds
        passes = ceil(passes * speeds[0] / min(speeds))
    total = request.budget.batches(passes, length, setup.method.accumulate)
    completed = state.entered(length, setup.method.accumulate)
    shown = request.progress and world.is_main

    def tell_of_checkpoint(folder: Path) -> None:
        for callback in state.callbacks:
            callback.on_checkpoint(trainer, folder)

    def tell_of_update(stage: Stage) -> None:
        for callback in state.callbacks:
            callback.on_update(trainer, stage)

    # Open what the loop needs, start the callbacks, and let it run.
    with (
        session.reporting_failures(),
        progress_bar(
            state.first_epoch + passes, total, completed=completed, shown=shown
        ) as bar,
        Interrupt(signals if world.size > 1 else heard(signals)) as interrupt,
        saving(request.checkpoints, session, state, request.train, tell_of_checkpoint) as save,
    ):
        state.require_same_length(length)
        state.callbacks = state.callbacks.started(trainer, request.callbacks)
        kind = OwnEpochs if session.detached else CommonEpochs
        fit = kind(request, trainer, session, state, bar, interrupt, save)
        session.update_listeners.append(tell_of_update)
        try:
            yield fit
        finally:
            session.update_listeners.clear()
            state.pause()
    if world.size == 1 and interrupt.asked:  # after the last look
        raise KeyboardInterrupt(interrupt.asked)

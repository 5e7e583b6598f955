"""Data and goal of one ``fit``, and whom to tell about it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hocket.checkpoint import Checkpoints
from hocket.engine.event import Event
from hocket.errors import OptionError
from hocket.options import require_functions, require_list
from hocket.stage.setup import Setup
from hocket.training.budget import Budget
from hocket.training.callback import Callback, EpochFunction
from hocket.training.checkpoints.resume import SaveCheckpoint, saving
from hocket.training.fit.interrupt import Interrupt, heard, stop_signals
from hocket.training.fit_state import FitState
from hocket.training.results.metrics import EpochResult, EvaluationResult
from hocket.training.results.progress_bar import Progress, progress_bar
from hocket.training.session.agreement import require_alike
from hocket.training.session.batches import require_batches
from hocket.training.session.session import Session

if TYPE_CHECKING:
    from hocket.training.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class FitRequest:
    """Arguments of one ``fit``, checked.

    Attributes:
        train: The training data.
        validation: Data to evaluate on after each epoch; None for no evaluation.
        budget: Length of the training, and where within epochs it is evaluated.
        length: Batches in an epoch; None if unknown.
        resumed: True if the epochs are those of a training that began before a restart.
        on_epoch: Called with the result of each epoch, before the callbacks; None for nobody.
        on_evaluation: Called with the number of updates and the result of each evaluation
            within an epoch; None for nobody.
        callbacks: Called after steps, epochs and checkpoints.
        progress: True to show the progress, in the process that prints.
        checkpoints: Folder and interval of checkpoints; None for none.

    Raises:
        DataError: The data cannot be iterated.
        OptionError: Another argument is of another kind.
    """

    train: Iterable[Any]
    validation: Iterable[Any] | None
    budget: Budget
    length: int | None
    resumed: bool
    on_epoch: Callable[[EpochResult], None] | None
    on_evaluation: Callable[[int, EvaluationResult], None] | None
    callbacks: Sequence[Callback]
    progress: bool
    checkpoints: Checkpoints | None

    def __post_init__(self) -> None:
        require_batches("training data", self.train)
        if self.validation is not None:
            require_batches("validation data", self.validation)
        require_functions(on_epoch=self.on_epoch, on_evaluation=self.on_evaluation)
        if self.checkpoints is not None and not isinstance(self.checkpoints, Checkpoints):
            raise OptionError(
                f"checkpoints is {self.checkpoints!r}; give hocket.Checkpoints(folder)"
            )

    def all_callbacks(self) -> list[Callback]:
        """Return the function of an epoch as a callback, and the callbacks.

        Raises:
            OptionError: They are no list.
        """
        of_epoch = [] if self.on_epoch is None else [EpochFunction(self.on_epoch)]
        return [*of_epoch, *require_list("callbacks", self.callbacks)]

    def require_same(self, session: Session) -> None:
        """Refuse a ``fit`` that other processes were given otherwise, and would wait for.

        Raises:
            WorldError: It differs.
        """
        if session.world.size == 1:
            return
        given = {
            **asdict(self.budget),
            "validation": "not there" if self.validation is None else "given",
            "the interval of checkpoints": self.checkpoints and self.checkpoints.every,
            "the number of batches": self.length if session.detached else "that of stage 0",
        }
        require_alike(session.world.gather(given, "calling fit"))


@dataclass(frozen=True, kw_only=True)
class FitPlan:
    """Data and goal of one ``fit``, and whom to tell about it.

    Attributes:
        train: The training data.
        validation: Data to evaluate on after each epoch; None for no evaluation.
        budget: Length of the training, and where within epochs it is evaluated.
        length: Batches in an epoch; None if unknown.
        resumed: True if the epochs are those of a training that began before a restart.
        progress: Told of batches and epochs.
        interrupt: Knows whether the training is asked to stop.
        save: Leaves checkpoints.
        on_step: Called with the events of each tick at which a batch entered.
        on_epoch: Called with the result of each epoch.
        on_evaluation: Called with the number of updates and the result of each evaluation
            within an epoch.
    """

    train: Iterable[Any]
    validation: Iterable[Any] | None
    budget: Budget
    length: int | None
    resumed: bool
    progress: Progress
    interrupt: Interrupt
    save: SaveCheckpoint
    on_step: Callable[[Sequence[Event]], None]
    on_epoch: Callable[[EpochResult], None]
    on_evaluation: Callable[[int, EvaluationResult], None]


@contextmanager
def opened(
    request: FitRequest, trainer: "Trainer", session: Session, state: FitState
) -> Iterator[FitPlan]:
    """Context manager with all that a ``fit`` needs while it runs.

    Signals ask for an end, the progress is shown, checkpoints are written, and callbacks have
    started. A first Ctrl-C ends it after the present tick.

    Args:
        request: Arguments of the ``fit``.
        trainer: Handed to the callbacks.
        session: The network and its engine.
        state: Epochs and batches that are done already.

    Raises:
        CheckpointError: One cannot be written, and the training is to stop for that.
        DataError: They are not the data that the present epoch began with.
        OptionError: Checkpoints are wanted, and the trainer is not resumable.
        KeyboardInterrupt: A single process was asked to stop when all was done.
    """
    checkpoints, budget, setup = request.checkpoints, request.budget, session.setup
    signals = stop_signals()
    passes = count_passes(setup, budget, request.length)
    total = budget.batches(passes, request.length, setup.method.accumulate)

    is_shown = request.progress and session.world.is_main
    completed = state.entered(request.length, setup.method.accumulate)

    def tell(folder: Path) -> None:
        state.callbacks.checkpoint(trainer, folder)

    with session.reporting_failures():
        request.require_same(session)
    with (
        session.reporting_failures(),
        progress_bar(
            state.first_epoch + passes, total, completed=completed, shown=is_shown
        ) as bar,
        Interrupt(signals if session.world.size > 1 else heard(signals)) as interrupt,
        saving(checkpoints, session, state, request.train, tell) as save,
    ):
        state.require_same_length(request.length)
        state.callbacks = state.callbacks.started(trainer, request.all_callbacks())

        def evaluated(updates: int, result: EvaluationResult) -> None:
            if request.on_evaluation is not None:
                request.on_evaluation(updates, result)
            state.callbacks.evaluation(trainer, updates, result)

        plan = FitPlan(
            train=request.train,
            validation=request.validation,
            budget=budget,
            length=request.length,
            resumed=request.resumed,
            progress=bar,
            interrupt=interrupt,
            save=save,
            on_step=partial(state.callbacks.step, trainer),
            on_epoch=partial(state.callbacks.epoch, trainer),
            on_evaluation=evaluated,
        )
        with session.telling_of_updates(partial(state.callbacks.update, trainer)):
            try:
                yield plan
            finally:
                state.pause()
    if session.world.size == 1 and interrupt.asked:  # after the last look
        raise KeyboardInterrupt(interrupt.asked)


def count_passes(setup: Setup, budget: Budget, length: int | None) -> int:
    """Return the passes over the data until the slowest stage has done its budget.

    Args:
        setup: Options that all stages share.
        budget: Length of the training.
        length: Batches in an epoch; None if unknown.
    """
    passes = budget.passes(length, setup.method.accumulate)
    if setup.stage_speeds is None:
        return passes
    speeds = setup.stage_speeds.speeds
    return ceil(passes * speeds[0] / min(speeds))

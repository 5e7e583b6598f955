"""The loop over epochs of ``fit``: train, evaluate, and leave checkpoints until all is done.

Stages that keep step go through each epoch together. Stages that run freely in processes of
their own are detached: each counts its epochs for itself, and they meet at the end only. The
loop is the same; a `Pacing` ends the epochs in one of these two ways.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, zip_longest
from typing import Any, Protocol

from hocket.engine.event import Event
from hocket.errors import DataError, OptionError
from hocket.training.budget import Budget
from hocket.training.evaluation import measure
from hocket.training.fit_state import FitState
from hocket.training.interrupt import Interrupt
from hocket.training.metrics import EpochResult, EvaluationResult, TrainingMeter
from hocket.training.progress_bar import Progress
from hocket.training.resume import SaveCheckpoint
from hocket.training.session import Session
from hocket.tree import count_samples


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


def fit(session: Session, state: FitState, plan: FitPlan) -> None:
    """Train until every stage has trained for all epochs; results are added to the state.

    Args:
        session: The network and its engine.
        state: Epochs and batches that are done already.
        plan: Data and goal.

    Raises:
        OptionError: Stages count their own epochs, and there are data of unknown length, or a
            number of updates.
        DataError: The training data have no batches.
        KeyboardInterrupt: The training was asked to stop; a checkpoint is left, if any is.
    """
    free = session.setup.method.free_running
    if free and plan.length is None and (session.setup.resumable or session.detached):
        raise OptionError(
            "each stage counts its own epochs, and the training data do not say how many "
            "batches they have; pass a list or a DataLoader"
        )
    if free and plan.budget.counts_updates:
        raise OptionError(
            f"the stages of method {session.setup.method.name!r} run freely, and each counts "
            "its own updates; give epochs, and leave updates and evaluate_every out"
        )
    goal = _Goal(session, plan)
    goal.set()  # else a resumed engine would not know that it has reached its goal
    pacing: Pacing = (Detached if session.detached else Together)(session, state, plan)
    while not pacing.is_over():
        _train_epoch(session, state, plan, goal)
        if not pacing.end_epoch():
            break
    pacing.finish()
    session.collect()


class Pacing(Protocol):
    """A way to end the epochs of a training."""

    def is_over(self) -> bool:
        """Return True once every stage has trained for all epochs."""

    def end_epoch(self) -> bool:
        """End an epoch, at the end of the data; return False to stop at once."""

    def finish(self) -> None:
        """Bring together what is left, behind the last epoch."""


class Together:
    """Epochs that all stages begin and end together, with an evaluation after each.

    Args:
        session: The network and its engine.
        state: Epochs and batches that are done already.
        plan: Data and goal.
    """

    def __init__(self, session: Session, state: FitState, plan: FitPlan) -> None:
        self._session = session
        self._state = state
        self._plan = plan

    def is_over(self) -> bool:
        """Return True once every stage has trained for all epochs.

        An epoch that has begun is completed, even if stages have finished in it. That any
        process has asked to stop is the end as well; then batches stay in flight.
        """
        state = self._state
        if any(self._session.world.gather(state.stop_requested)):
            return True
        enough = self._plan.budget.is_spent(len(state.history), state.updates)
        return enough and not state.batches and self._session.engine.finished

    def end_epoch(self) -> bool:
        """Evaluate, and add the result of the epoch to the history of all processes."""
        session, state, plan = self._session, self._state, self._plan
        _stop_if_asked(session, plan)
        state.meter.add(session.drain())
        if session.setup.method.epoch_end == "drain":
            state.drain()
        is_last = plan.budget.is_spent(len(state.history) + 1, state.updates)
        if is_last and session.engine.finished:
            state.drain()
            state.meter.add(session.finish())
        rows = session.world.gather([state.meter.values(), state.samples, state.seconds])
        evaluation = _evaluate(session, plan)
        if evaluation is not None:
            session.note_loss(state.epoch, evaluation.loss)
        epoch = _merge_rows(session, rows, state.epoch, evaluation)
        if not session.setup.method.free_running:
            epoch = replace(epoch, updates=state.updates)
        state.end_epoch(epoch)
        error = epoch.evaluation.error if epoch.evaluation else None
        plan.progress.epoch(epoch.number, epoch.loss, error, max(epoch.skipped))
        plan.on_epoch(epoch)
        plan.save(None)
        return True

    def finish(self) -> None:
        """Do nothing: every epoch has ended for all."""


class Detached:
    """Epochs that the stage of this process counts for itself, without waiting for others.

    What is known of single stages comes together at the end, where all evaluate.

    Args:
        session: The network and its engine.
        state: Epochs and batches that are done already.
        plan: Data and goal.
    """

    def __init__(self, session: Session, state: FitState, plan: FitPlan) -> None:
        self._session = session
        self._state = state
        self._plan = plan
        self._first = state.epoch - len(state.rows)

    def is_over(self) -> bool:
        """Return True once every stage has trained for all epochs."""
        return bool(self._state.rows) and self._session.engine.finished

    def end_epoch(self) -> bool:
        """Keep the result of this stage's epoch; return False if asked to stop."""
        session, state, plan = self._session, self._state, self._plan
        if plan.interrupt.asked:
            session.engine.stop()
            return False
        if state.meter.newest_loss(None) or not state.rows:
            plan.progress.epoch(state.epoch, state.meter.mean_loss(None) or 0.0, None)
            state.end_own_epoch()
            session.drain()
            plan.save(None)
        else:  # the stage only passed on batches that others still train on
            state.skip_epoch()
        return True

    def finish(self) -> None:
        """Meet the other processes, evaluate, and merge the epochs of all stages."""
        session, state, plan = self._session, self._state, self._plan
        session.finish()
        _stop_if_asked(session, plan)
        epochs = []
        gathered = session.world.gather(state.rows)
        for number, rows in enumerate(zip_longest(*gathered), self._first):
            present = [row for row in rows if row is not None]
            epochs.append(_merge_rows(session, present, number, None))
        epochs[-1] = replace(epochs[-1], evaluation=_evaluate(session, plan))
        state.history = epochs
        for epoch in epochs:
            plan.on_epoch(epoch)


class _Goal:
    """Tells the engine once how many epochs to train for, as soon as it is built."""

    def __init__(self, session: Session, plan: FitPlan) -> None:
        self._session = session
        self._plan = plan
        self._told = False

    def set(self) -> None:
        session, plan = self._session, self._plan
        if session.prepared and not self._told:
            epochs = plan.budget.passes(plan.length, session.setup.method.accumulate)
            session.engine.set_goal(epochs, plan.length, again=plan.resumed)
            self._told = True
            if session.follows_losses and plan.validation is None:
                raise OptionError(
                    "ReduceLROnPlateau follows the validation loss at the end of each epoch, "
                    "and there are no validation data; give some, or another scheduler"
                )
            if session.detached and not plan.resumed:
                plan.save(None)  # for a process that is killed before the first one is due


def _train_epoch(session: Session, state: FitState, plan: FitPlan, goal: _Goal) -> None:
    """Train on the rest of an epoch's data; its events are counted in the state.

    Raises:
        DataError: The training data have no batches.
        KeyboardInterrupt: This process was asked to stop before it had read a batch.
    """
    free, number = session.setup.method.free_running, state.epoch
    session.training_mode.enter()
    data = state.remaining_batches(plan.train)
    if session.world.reads_data:
        data = plan.interrupt.until_asked(data, session.world.agreement_store())
    batches = session.prepared_by(data)
    if plan.interrupt.asked and not session.prepared:
        raise KeyboardInterrupt(plan.interrupt.asked)  # there is nothing to save yet
    goal.set()
    while _train_until_stop(session, state, plan, batches):
        pass
    expected = session.world.reads_data and not plan.interrupt.asked
    if state.samples == 0 and expected and not (free and session.engine.finished):
        raise DataError(
            f"epoch {number}: the training data have no batches; an iterator can be used "
            "once, so pass a list or a DataLoader"
        )


def _train_until_stop(
    session: Session, state: FitState, plan: FitPlan, batches: Iterator[Any]
) -> bool:
    """Train until an evaluation within the epoch is due, or the training or the epoch ends.

    Args:
        session: The network and its engine.
        state: Epochs and batches that are done already.
        plan: Data and goal.
        batches: The remaining batches of the epoch.

    Returns:
        True if the epoch goes on.
    """
    budget, method = plan.budget, session.setup.method
    if budget.evaluates_at(state.updates) and state.evaluated < state.updates:
        with state.untimed():
            evaluation = _evaluate(session, plan)
        if evaluation is not None:
            plan.progress.evaluation(state.updates, evaluation.loss, evaluation.error)
            plan.on_evaluation(state.updates, evaluation)
        state.evaluated = state.updates
    updates = budget.updates_to_next_stop(state.updates)
    count = None if updates is None else state.batches_until(updates, method.accumulate)
    missing = count
    shown = None if method.free_running else state.epoch
    for inputs, targets in session.engine.ticks(islice(batches, count)):
        state.enter(method.accumulate)
        events = session.step(inputs, targets, state.epoch)
        state.add(events, count_samples(inputs))
        plan.progress.batch(partial(state.newest, shown))
        plan.on_step(events)
        plan.save(session.engine.tick_count)
        missing = None if missing is None else missing - 1
    # In processes that read no data as well: all count the batches that have entered.
    return missing == 0 and not budget.is_spent(len(state.history), state.updates)


def _evaluate(session: Session, plan: FitPlan) -> EvaluationResult | None:
    """Return the result of an evaluation; None without data for one.

    Raises:
        KeyboardInterrupt: All processes were asked to stop, and drop the evaluation.
        DataError: There are no batches.
    """
    if plan.validation is None:
        return None
    counts = measure(session, plan.interrupt.until_asked(plan.validation))
    _stop_if_asked(session, plan)
    return counts.result()


def _stop_if_asked(session: Session, plan: FitPlan) -> None:
    """Stop all processes, with a checkpoint, if one of them was asked to stop.

    Raises:
        KeyboardInterrupt: With the number of the signal.
    """
    if asked := max(session.world.gather(plan.interrupt.asked)):
        plan.save(None)
        raise KeyboardInterrupt(asked)


def _merge_rows(
    session: Session, rows: Sequence[Any], number: int, evaluation: EvaluationResult | None
) -> EpochResult:
    """Merge what the processes have counted in an epoch."""
    total = TrainingMeter()
    for values, _, _ in rows:
        total.merge(values)
    return total.epoch(
        number,
        session.cut.count,
        evaluation,
        seconds=max(row[2] for row in rows),
        samples=max(row[1] for row in rows),
        all_losses=session.setup.method.free_running,
    )

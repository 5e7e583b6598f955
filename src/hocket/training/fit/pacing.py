"""The two ways in which epochs end: for all stages together, or for each stage by itself.

Stages that keep step go through each epoch together. Stages that run freely in processes of
their own are detached: each counts its epochs for itself, and they meet at the end only.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, Protocol

from hocket.data.loader_state import preserve_loader
from hocket.training.fit.evaluation import measure
from hocket.training.fit.fit_plan import FitPlan
from hocket.training.fit_state import FitState
from hocket.training.results.metrics import EpochResult, EvaluationResult, TrainingMeter
from hocket.training.results.progress_bar import EndedEpoch
from hocket.training.session.session import Session


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
        return enough and not state.batches and self._session.engine.pace.finished

    def end_epoch(self) -> bool:
        """Evaluate, and add the result of the epoch to the history of all processes."""
        session, state, plan = self._session, self._state, self._plan
        stop_if_asked(session, plan)
        state.meter.add(session.drain())
        if session.setup.method.epoch_end == "drain":
            state.drain()
        is_last = plan.budget.is_spent(len(state.history) + 1, state.updates)
        if is_last and session.engine.pace.finished:
            state.drain()
            state.meter.add(session.finish())
        state.pause()
        rows = session.world.gather([state.meter.values(), state.samples, state.seconds])
        evaluation = evaluate_unless_asked(session, plan)
        if evaluation is not None:
            session.note_loss(state.epoch, evaluation.loss)
        epoch = _merge_rows(session, rows, state.epoch, evaluation)
        if not session.setup.method.free_running:
            epoch = replace(epoch, updates=state.updates)
        state.end_epoch(epoch)
        skipped = max(epoch.skipped)
        plan.progress.epoch(EndedEpoch(epoch.number, epoch.loss, evaluation, skipped))
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
        self._first = state.first_epoch

    def is_over(self) -> bool:
        """Return True once every stage has trained for all epochs."""
        return bool(self._state.rows) and self._session.engine.pace.finished

    def end_epoch(self) -> bool:
        """Keep the result of this stage's epoch; return False if asked to stop."""
        session, state, plan = self._session, self._state, self._plan
        if (
            plan.interrupt.asked or session.engine.pace.stopped
        ):  # also in the middle of an epoch
            session.engine.pace.stop()
            return False
        if state.meter.newest_loss(None) is not None or not state.rows:
            loss = state.meter.mean_loss(None)
            stage = state.meter.local_stage(None, session.cut.count - 1)
            shown = math.nan if loss is None else loss
            plan.progress.epoch(EndedEpoch(state.epoch, shown, stage=stage))
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
        stop_if_asked(session, plan)
        epochs = []
        gathered = session.world.gather(state.rows)
        for number, rows in enumerate(zip_longest(*gathered), self._first):
            present = [row for row in rows if row is not None]
            epochs.append(_merge_rows(session, present, number, None))
        epochs[-1] = replace(epochs[-1], evaluation=evaluate_unless_asked(session, plan))
        state.history = epochs
        for epoch in epochs:
            plan.on_epoch(epoch)


def evaluate_unless_asked(session: Session, plan: FitPlan) -> EvaluationResult | None:
    """Return the result of an evaluation; None without data for one.

    Raises:
        KeyboardInterrupt: All processes were asked to stop, and drop the evaluation.
        DataError: There are no batches.
    """
    if plan.validation is None:
        return None
    with preserve_loader(plan.validation):  # it may be that of the training
        counts = measure(session, plan.interrupt.until_asked(plan.validation))
    stop_if_asked(session, plan)
    return counts.result()


def stop_if_asked(session: Session, plan: FitPlan) -> None:
    """Stop all processes, with a checkpoint, if one of them was asked to stop.

    Raises:
        KeyboardInterrupt: With the number of the signal.
    """
    if asked := max(session.world.gather(plan.interrupt.asked)):
        plan.interrupt.asked = asked  # as a signal to all may reach this process later
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
        # Each stage may back off, and those before it skip the batch with it.
        spared=session.cut.count * session.setup.build_loss_scale().most_backoffs
        + len(session.setup.skip_batches),
    )

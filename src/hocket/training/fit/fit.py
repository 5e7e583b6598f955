"""The loop over epochs of ``fit``: train, evaluate, and leave checkpoints until all is done."""

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch.optim import lr_scheduler

from hocket.errors import DataError, OptionError, warn
from hocket.training.budget import COUNTS_OWN_UPDATES
from hocket.training.fit.fit_plan import FitPlan
from hocket.training.fit.pacing import Detached, Pacing, Together, evaluate_unless_asked
from hocket.training.fit_state import FitState
from hocket.training.session.session import Session
from hocket.tree import count_samples


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
    if free and plan.length is None:
        raise OptionError(
            "each stage counts its own epochs, and the training data do not say how many "
            "batches they have; pass a list or a DataLoader"
        )
    if free and plan.budget.counts_updates:
        raise OptionError(
            f"the stages of method {session.setup.method.name!r} run freely, and each "
            f"{COUNTS_OWN_UPDATES}"
        )
    goal = _Goal(session, plan, state.epoch)
    goal.set()  # else a resumed engine would not know that it has reached its goal
    pacing: Pacing = (Detached if session.detached else Together)(session, state, plan)
    try:
        while not pacing.is_over():
            _train_epoch(session, state, plan, goal)
            if not pacing.end_epoch():
                break
        pacing.finish()
        session.collect()
        # A loader draws from the global generator, and only that of the data is read.
        torch.set_rng_state(session.world.broadcast(torch.get_rng_state()))
    finally:
        session.engine.pace.end_goal()  # a loop of the caller's own has none


class _Goal:
    """Tells the engine once how many epochs to train for, as soon as it is built."""

    def __init__(self, session: Session, plan: FitPlan, epoch: int) -> None:
        self._session = session
        self._plan = plan
        self._epoch = epoch
        self._told = False

    def set(self) -> None:
        session, plan = self._session, self._plan
        if session.prepared and not self._told:
            epochs = plan.budget.passes(plan.length, session.setup.method.accumulate)
            session.engine.pace.set_goal(
                epochs, plan.length, epoch=self._epoch, again=plan.resumed
            )
            self._told = True
            if session.follows_losses and plan.validation is None:
                raise OptionError(
                    "ReduceLROnPlateau follows the validation loss at the end of each epoch, "
                    "and there are no validation data; give some, or another scheduler"
                )
            if session.world.is_main:
                _warn_of_slow_rates(session, plan, epochs)
            if session.detached and not plan.resumed:
                plan.save(None)  # for a process that is killed before the first one is due


def _warn_of_slow_rates(session: Session, plan: FitPlan, epochs: int) -> None:
    """Warn of a warm-up without an end, and of epochs counted by a schedule of updates."""
    setup = session.setup
    batches = plan.budget.batches(epochs, plan.length, setup.method.accumulate)
    schedulers = [stage.updater.scheduler for stage in session.engine.stages]
    steps = max(map(_count_steps, schedulers))
    if batches is None:
        return
    updates = batches // setup.method.accumulate
    end = session.engine.stages[0].updater.version + updates
    if 0 < end <= setup.warmup_updates:
        warn(
            f"warmup_updates is {setup.warmup_updates}, and this fit ends after {end} updates, "
            "before the learning rate has risen; give fewer"
        )
    # Many more are a training that is cut short.
    unsuited = 2 * epochs < updates <= steps <= updates + max(1, updates // 10)
    if setup.scheduler_unit == "epoch" and unsuited:
        warn(
            f"the scheduler counts epochs, of which there are {epochs}, and its schedule has "
            f"{steps} steps, so the learning rate hardly changes; give "
            "scheduler_unit='update', or a schedule of as many steps as epochs",
        )


def _count_steps(scheduler: object) -> int:
    """Return the steps of one of PyTorch's schedules; 0 if it has no end that is known."""
    parts: list[object] = getattr(scheduler, "_schedulers", [])
    if isinstance(scheduler, lr_scheduler.SequentialLR):
        return sum(scheduler._milestones[-1:]) + _count_steps(parts[-1])
    numbers = [
        getattr(scheduler, name, None) for name in ("total_steps", "T_max", "total_iters")
    ]
    milestones = getattr(scheduler, "milestones", ())
    known: list[int] = [*(n for n in numbers if isinstance(n, int)), *milestones]
    return max([0, *known, *map(_count_steps, parts)])


def _train_epoch(session: Session, state: FitState, plan: FitPlan, goal: _Goal) -> None:
    """Train on the rest of an epoch's data; its events are counted in the state.

    Raises:
        DataError: The training data have no batches.
        KeyboardInterrupt: This process was asked to stop before it had read a batch.
    """
    free, number = session.setup.method.free_running, state.epoch
    session.training_mode.enter()
    reads = session.world.reads_data
    data = state.remaining_batches(plan.train, session.splitter.count_samples, reads=reads)
    if reads:
        data = plan.interrupt.until_asked(data, session.world.agreement_store())
    batches = session.prepared_by(data)
    if plan.interrupt.asked and not session.prepared:
        raise KeyboardInterrupt(plan.interrupt.asked)  # there is nothing to save yet
    goal.set()
    while _train_until_stop(session, state, plan, batches):
        pass
    expected = reads and not plan.interrupt.asked
    if state.samples == 0 and expected and not (free and session.engine.pace.finished):
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
            evaluation = evaluate_unless_asked(session, plan)
            state.evaluated = state.updates  # first, as a callback may write a checkpoint
            if evaluation is not None:
                plan.progress.evaluation(state.updates, evaluation)
                plan.on_evaluation(state.updates, evaluation)
    updates = budget.updates_to_next_stop(state.updates)
    count = None if updates is None else state.batches_until(updates, method.accumulate)
    missing = count
    shown = None if method.free_running else state.epoch
    for inputs, targets in session.engine.pace.ticks(islice(batches, count)):
        state.enter(method.accumulate, count_samples(inputs))
        events = session.step(inputs, targets, state.epoch)
        state.meter.add(events)
        plan.progress.batch(partial(state.newest, shown, session.cut.count - 1))
        plan.on_step(events)
        plan.save(session.engine.tick_count)
        missing = None if missing is None else missing - 1
    # In processes that read no data as well: all count the batches that have entered.
    return missing == 0 and not budget.is_spent(len(state.history), state.updates)

"""One ``fit`` under way: the loop over epochs, which end for all stages together or for each.

Stages that keep step go through each epoch together. Stages that run freely in separate
processes are detached: each counts its epochs for itself, and they meet at the end only.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice, zip_longest
from math import ceil
from pathlib import Path
from threading import get_ident
from typing import Any

import torch
from torch.optim import lr_scheduler

from hocket.checkpoint import Checkpoints
from hocket.data.loader_state import preserve_loader
from hocket.errors import DataError, OptionError, Problems, warn
from hocket.options.hints import wrong_fields
from hocket.options.require import wrong_functions
from hocket.stage.stage import Stage
from hocket.training.budget import COUNTS_OWN_UPDATES, Budget
from hocket.training.callback import Callback, TrainerView
from hocket.training.checkpoints.save import SaveCheckpoint, require_checkpoints, saving
from hocket.training.fit.interrupt import Interrupt, heard, stop_signals
from hocket.training.fit_state import FitState
from hocket.training.results.meters import TrainingMeter
from hocket.training.results.metrics import EpochResult, EvaluationResult, read_metric
from hocket.training.results.progress_bar import Progress, progress_bar
from hocket.training.session.agreement import require_alike
from hocket.training.session.batches import length_of, require_batches
from hocket.training.session.evaluation import measure
from hocket.training.session.session import Session
from hocket.tree import count_samples


@dataclass(frozen=True, kw_only=True)
class FitRequest:
    """Arguments of one ``fit``, checked; ``hocket.Trainer.fit`` describes the others.

    Attributes:
        budget: Length of the training, and where within epochs it is evaluated.
        length: Batches in an epoch; None if unknown.

    Raises:
        DataError: The data cannot be iterated.
        OptionError: Another argument is of another kind, there are no data for evaluations
            within epochs, or a listener without such evaluations.
    """

    train: Iterable[Any]
    validation: Iterable[Any] | None
    budget: Budget
    length: int | None
    on_epoch: Callable[[EpochResult], None] | None
    on_evaluation: Callable[[int, EvaluationResult], None] | None
    callbacks: Sequence[Callback]
    progress: bool
    checkpoints: Checkpoints | None

    def __post_init__(self) -> None:
        require_batches("training data", self.train)
        if self.validation is not None:
            require_batches("validation data", self.validation)
        problems = wrong_fields(self)
        problems += wrong_functions(on_epoch=self.on_epoch, on_evaluation=self.on_evaluation)
        Problems(problems).raise_together("these arguments are impossible")
        every = self.budget.evaluate_every
        if every and self.validation is None:
            raise OptionError(
                f"evaluate_every is {every}, and there is nothing to evaluate on; give "
                "validation data"
            )
        if self.on_evaluation is not None and not every:
            raise OptionError("on_evaluation is never called without evaluate_every; give both")
        if self.checkpoints is not None:
            require_checkpoints(self.checkpoints)

    def require_same(self, session: Session) -> None:
        """Refuse arguments that differ from what other processes were given.

        Raises:
            WorldError: They differ, so that processes would wait for each other.
        """
        given = {
            **asdict(self.budget),
            "validation": "not there" if self.validation is None else "given",
            "the interval of checkpoints": self.checkpoints and self.checkpoints.every,
        }
        length = {"the number of batches": self.length}
        gathered = session.world.gather([given, length], "calling fit")
        require_alike([same for same, _ in gathered])
        # Compare lengths where batches are counted: in the first stage, or in all.
        counting = session.world.size if session.detached else session.world.replicas
        require_alike([length for _, length in gathered[:counting]])


@dataclass(eq=False)
class Fit:
    """Trains, evaluates and leaves checkpoints until every stage has done all its epochs.

    All stages begin and end an epoch together, with an evaluation after it.
    """

    request: FitRequest
    trainer: TrainerView
    session: Session
    state: FitState
    progress: Progress
    interrupt: Interrupt
    save: SaveCheckpoint

    def run(self) -> None:
        """Train until all epochs are done; their results are added to the state.

        Raises:
            OptionError: Stages count their own epochs, and there are data of unknown length, or
                a number of updates.
            DataError: The training data have no batches, or the validation data none.
            KeyboardInterrupt: The training has to stop; a checkpoint is left, if any is.
        """
        session, request = self.session, self.request
        # Refuse data and lengths for which stages that run freely cannot count for themselves.
        method, budget = session.setup.method, request.budget
        if method.free_running and request.length is None:
            raise OptionError(
                "each stage counts its own epochs, and the training data do not say how many "
                "batches they have; pass a list or a DataLoader"
            )
        if method.free_running and (budget.updates is not None or budget.evaluate_every):
            raise OptionError(
                f"the stages of method {method.name!r} run freely, and each "
                f"{COUNTS_OWN_UPDATES}"
            )
        if session.world.reads_data and length_of(request.validation) == 0:
            raise DataError("the validation data have no batches; give some, or None")
        # Train epoch by epoch, and bring the weights of all stages together.
        if session.prepared:
            self._set_goal()  # a resumed engine may have reached it
        try:
            while not self.is_over():
                self._train_epoch()
                if not self.end_epoch():
                    break
            self.finish()
            session.cut.collect(session.world)
            # A loader draws from the global generator, and only one process reads the data.
            torch.set_rng_state(session.world.broadcast(torch.get_rng_state()))
        finally:
            session.engine.end_goal()  # a loop of the caller's own has none

    def _train_epoch(self) -> None:
        """Train on the rest of an epoch's data; its events are counted in the state.

        Raises:
            DataError: The training data have no batches.
            KeyboardInterrupt: This process had to stop before it had read a batch.
        """
        session, state, interrupt = self.session, self.state, self.interrupt
        if not state.batches:
            state.length = length_of(self.request.train)  # which may change with the epoch
        # Read on where the epoch was left, until a signal comes.
        session.training_mode.enter()
        reads, count = session.world.reads_data, session.splitter.count_samples
        data = state.remaining_batches(self.request.train, count, session.world)
        if reads:
            data = interrupt.until_asked(data, session.world.common_end())
        # Build the stages with the first batch, if there are none yet.
        was_prepared = session.prepared
        batches = session.prepared_by(data)
        if interrupt.asked and not session.prepared:
            raise KeyboardInterrupt(interrupt.asked)  # there is nothing to save yet
        if session.prepared and not was_prepared:
            self._set_goal()
        # Train, and evaluate on the way.
        self._evaluate_within_epoch()
        while self._train_until_stop(batches):
            self._evaluate_within_epoch()
        # Refuse an epoch without batches, unless this stage has no epoch left.
        free = session.setup.method.free_running
        if not reads or interrupt.asked or (free and session.engine.reached_goal):
            return
        if not state.batches:
            raise DataError(
                f"epoch {state.epoch}: the training data have no batches; an iterator can be "
                "used once, so pass a list or a DataLoader"
            )
        if free and state.batches != self.request.length:
            warn(
                f"the training data have {state.batches} batches in an epoch, and their len() "
                f"is {self.request.length}, by which each stage counts its epochs; correct it"
            )

    def _train_until_stop(self, batches: Iterator[Any]) -> bool:
        """Train to the next evaluation or the end; return True if the epoch goes on."""
        session, state, budget = self.session, self.state, self.request.budget
        last, method = session.cut.count - 1, session.setup.method
        shown = None if method.free_running else state.epoch
        updates = budget.updates_to_next_stop(state.updates)
        count = None if updates is None else updates * method.accumulate - state.ungathered
        stop = None if updates is None else state.updates + updates
        # One tick for each batch: train, count, show, tell the callbacks, leave a checkpoint.
        for inputs, targets in session.engine.entering(islice(batches, count)):
            state.enter(method.accumulate, count_samples(inputs))
            events = session.ticks.step(inputs, targets, state.epoch)
            state.meter.add(events)
            self.progress.batch(partial(state.newest, shown, last))
            for callback in state.callbacks:
                callback.on_step(self.trainer, events)
            self.save(session.engine.tick_count)
        # In processes that read no data as well: all count the batches that have entered.
        return state.updates == stop and not budget.is_spent(len(state.history), state.updates)

    def is_over(self) -> bool:
        """Return True once every stage has trained for all epochs.

        An epoch that has begun is completed, even if stages have finished in it. If a process
        has asked to stop, this is the end as well; then batches stay in flight.
        """
        session, state = self.session, self.state
        if any(session.world.gather(state.stop_requested)):
            return True
        enough = self.request.budget.is_spent(len(state.history), state.updates)
        return enough and not state.batches and session.engine.reached_goal

    def end_epoch(self) -> bool:
        """End an epoch, at the end of the data; return False to stop at once.

        Evaluate, and add the result of the epoch to the history of all processes.
        """
        session, state, method = self.session, self.state, self.session.setup.method
        self.stop_if_asked()
        # Complete batches in flight where the method or the end of the training needs it.
        state.meter.add(session.ticks.end_epoch())
        if method.epoch_end == "drain":
            state.drain()
        is_last = self.request.budget.is_spent(len(state.history) + 1, state.updates)
        if is_last and session.engine.reached_goal:
            state.drain()
            state.meter.add(session.ticks.finish())
        # Merge the counts of all processes, and evaluate.
        state.pause()
        rows = session.world.gather([state.meter.values(), state.samples, state.seconds])
        evaluation = self.evaluate()
        epoch = self.merge_rows(rows, state.epoch, evaluation)
        if session.ticks.follows_losses:
            followed = read_metric(epoch, session.setup.plateau_metric, "ReduceLROnPlateau")
            session.ticks.note_loss(state.epoch, followed)
        if not method.free_running:
            epoch = replace(epoch, updates=state.updates)
        # Add the epoch to the history, show it, and tell the callbacks.
        state.end_epoch(epoch)
        self.progress.epoch(epoch.number, epoch.loss, evaluation, skipped=max(epoch.skipped))
        self.tell_of_epoch(epoch)
        self.save(None)
        return True

    def finish(self) -> None:
        """Bring the results of all processes together, if the ends of epochs have not."""

    def _evaluate_within_epoch(self) -> None:
        """Evaluate if that is due after so many updates, and tell the callbacks."""
        state = self.state
        is_due = self.request.budget.evaluates_at(state.updates)
        if not is_due or state.evaluated >= state.updates:
            return
        with state.untimed():
            evaluation = self.evaluate()
            state.evaluated = state.updates  # first, as a callback may write a checkpoint
            if evaluation is not None:
                self.progress.evaluation(state.updates, evaluation)
                if self.request.on_evaluation is not None:
                    self.request.on_evaluation(state.updates, evaluation)
                for callback in state.callbacks:
                    callback.on_evaluation(self.trainer, state.updates, evaluation)

    def evaluate(self) -> EvaluationResult | None:
        """Return the result of an evaluation; None without data for one.

        Raises:
            KeyboardInterrupt: All processes have to stop, and drop the evaluation.
            DataError: There are no batches.
        """
        validation = self.request.validation
        if validation is None:
            return None
        with preserve_loader(validation, in_use=validation is self.request.train):
            counts = measure(self.session, self.interrupt.until_asked(validation))
        self.stop_if_asked()
        return counts.result()

    def stop_if_asked(self) -> None:
        """Stop all processes, with a checkpoint, if one of them has to stop.

        Raises:
            KeyboardInterrupt: With the number of the signal.
        """
        if asked := max(self.session.world.gather(self.interrupt.asked)):
            self.interrupt.asked = asked  # as a signal to all may reach this process later
            self.save(None)
            raise KeyboardInterrupt(asked)

    def tell_of_epoch(self, epoch: EpochResult) -> None:
        """Pass the result of an epoch on to the user's function and to the callbacks."""
        if self.request.on_epoch is not None:
            self.request.on_epoch(epoch)
        for callback in self.state.callbacks:
            callback.on_epoch(self.trainer, epoch)

    def merge_rows(
        self, rows: Sequence[Any], number: int, evaluation: EvaluationResult | None
    ) -> EpochResult:
        """Merge what the processes have counted in an epoch.

        Args:
            rows: For each process the values of its meter, its samples and its seconds.
            number: Number of the epoch.
            evaluation: Result on the validation data, if there are any.
        """
        setup, count = self.session.setup, self.session.cut.count
        total = TrainingMeter()
        for values, _, _ in rows:
            total.merge(values)
        return total.epoch(
            number,
            count,
            evaluation,
            seconds=max(row[2] for row in rows),
            samples=max(row[1] for row in rows),
            all_losses=setup.method.free_running,
            # Each stage may back off, and those before it skip the batch with it.
            spared=count * setup.build_loss_scale().most_backoffs + len(setup.skip_batches),
        )

    def _set_goal(self) -> None:
        """Tell the engine how many epochs to train for, as soon as it is built, and check that.

        Raises:
            OptionError: A scheduler follows the validation loss, and there is none.
        """
        session, request = self.session, self.request
        budget, accumulate = request.budget, session.setup.method.accumulate
        epochs = budget.passes(request.length, accumulate)
        session.engine.set_goal(
            epochs, request.length, epoch=self.state.epoch, again=self.state.resumed
        )
        # Check the schedules, now that there are any.
        if session.ticks.follows_losses and request.validation is None:
            raise OptionError(
                "ReduceLROnPlateau follows the validation loss at the end of each epoch, "
                "and there are no validation data; give some, or another scheduler"
            )
        batches = budget.batches(epochs, request.length, accumulate)
        if session.world.is_main and batches is not None:
            self._warn_of_schedules(epochs, batches // accumulate)
        # Leave a checkpoint for a process that is killed before the first one is due.
        if session.detached and not self.state.resumed:
            self.save(None)

    def _warn_of_schedules(self, epochs: int, updates: int) -> None:
        """Warn of a warm-up that does not end, and of epochs in a schedule of updates."""
        setup, stages = self.session.setup, self.session.engine.stages
        end = stages[0].updater.version + updates
        if 0 < end <= setup.warmup_updates:
            warn(
                f"warmup_updates is {setup.warmup_updates}, and this fit ends after {end} "
                "updates, before the learning rate has risen; give fewer"
            )
        # A schedule of many more steps is one cut short.
        steps = max(_count_steps(stage.updater.scheduler) for stage in stages)
        unsuited = 2 * epochs < updates <= steps <= updates + max(1, updates // 10)
        if setup.scheduler_unit == "epoch" and unsuited:
            warn(
                f"the scheduler counts epochs, of which there are {epochs}, and its "
                f"schedule has {steps} steps, so the learning rate hardly changes; give "
                "scheduler_unit='update', or a schedule of as many steps as epochs",
            )


class DetachedFit(Fit):
    """Epochs that the stage of this process counts for itself, without waiting for others.

    Results of single stages come together at the end, where all evaluate.
    """

    def is_over(self) -> bool:
        """Return True once every stage has trained for all epochs."""
        return bool(self.state.rows) and self.session.engine.reached_goal

    def end_epoch(self) -> bool:
        """Keep the result of this stage's epoch; return False if asked to stop."""
        session, state = self.session, self.state
        # Stop at once, also in the middle of an epoch.
        if self.interrupt.asked or session.engine.stopped:
            session.engine.stop()
            return False
        # Skip an epoch in which the stage only passed on batches that others train on.
        if state.meter.newest_loss(None) is None and state.rows:
            state.skip_epoch()
            return True
        # Show the epoch, and keep its counts.
        owner = state.meter.owner(None, session.cut.count - 1)
        self.progress.epoch(state.epoch, state.meter.mean_loss(None), owner=owner)
        state.end_own_epoch()
        session.ticks.end_epoch()
        self.save(None)
        return True

    def finish(self) -> None:
        """Meet the other processes, evaluate, and merge the epochs of all stages."""
        session, state = self.session, self.state
        session.ticks.finish()
        self.stop_if_asked()
        # Merge the rows of all stages, of which some have done more epochs.
        gathered = zip_longest(*session.world.gather(state.rows))
        epochs = [
            self.merge_rows([*filter(None, rows)], number, None)
            for number, rows in enumerate(gathered, state.first_epoch)
        ]
        # Evaluate once, and tell the callbacks of all epochs.
        epochs[-1] = replace(epochs[-1], evaluation=self.evaluate())
        state.history = epochs
        for epoch in epochs:
            self.tell_of_epoch(epoch)


def _count_steps(scheduler: object) -> int:
    """Return the steps of one of PyTorch's schedules; 0 if it has no end that is known."""
    parts: list[object] = getattr(scheduler, "_schedulers", [])
    if isinstance(scheduler, lr_scheduler.SequentialLR):
        return sum(scheduler._milestones[-1:]) + _count_steps(parts[-1])
    ends = [getattr(scheduler, name, None) for name in ("total_steps", "T_max", "total_iters")]
    milestones = getattr(scheduler, "milestones", ())
    known: list[int] = [*(n for n in ends if isinstance(n, int)), *milestones]
    return max([0, *known, *map(_count_steps, parts)])


def run_fit(
    request: FitRequest, trainer: TrainerView, session: Session, state: FitState
) -> None:
    """Run a ``fit``: show its progress, write checkpoints, start the callbacks, and train.

    A first Ctrl-C ends it after the current tick.

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
        passes = ceil(passes * setup.stage_speeds[0] / min(setup.stage_speeds))
    total = request.budget.batches(passes, length, setup.method.accumulate)
    completed = state.entered(length, setup.method.accumulate)
    shown = request.progress and world.is_main

    def tell_of_checkpoint(folder: Path) -> None:
        for callback in state.callbacks:
            callback.on_checkpoint(trainer, folder)

    def tell_of_update(stage: Stage) -> None:
        for callback in state.callbacks:
            callback.on_update(trainer, stage)

    # Open what the loop needs.
    with (
        session.reporting_failures(),
        progress_bar(
            state.first_epoch + passes, total, completed=completed, shown=shown
        ) as bar,
        Interrupt(signals if world.size > 1 else heard(signals)) as interrupt,
        saving(request.checkpoints, session, state, tell_of_checkpoint) as save,
    ):
        # Refuse data of another length within an epoch, and warn of them between two.
        before = state.length
        change = f"an epoch had {before} batches before the checkpoint, and has {length}"
        differs = None not in (before, length) and before != length
        if differs and state.batches:
            raise DataError(f"{change}; give the data that the training began with")
        if differs:
            warn(f"{change} from now on")

        # Start the callbacks, and train.
        state.train, state.thread, state.stop_requested = request.train, get_ident(), False
        session.update_listeners.append(tell_of_update)
        ticks = session.engine.tick_count
        try:
            state.callbacks = state.callbacks.started(trainer, request.callbacks)
            kind = DetachedFit if session.detached else Fit
            kind(request, trainer, session, state, bar, interrupt, save).run()
            state.resumed = False
        except BaseException:
            # Another fit continues it, too, if this one has done no tick.
            state.resumed = state.resumed and session.engine.tick_count == ticks
            raise
        finally:
            session.update_listeners.clear()
            state.end_fit()
    if world.size == 1 and interrupt.asked:  # after the last look
        raise KeyboardInterrupt(interrupt.asked)

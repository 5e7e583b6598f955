"""The two ways in which epochs end: for all stages together, or for each stage by itself.

Stages that keep step go through each epoch together. Stages that run freely in processes of
their own are detached: each counts its epochs for itself, and they meet at the end only.
"""

import math
from dataclasses import replace
from itertools import zip_longest

from hocket.training.fit.fit import Fit
from hocket.training.results.progress_bar import EndedEpoch


class CommonEpochs(Fit):
    """Epochs that all stages begin and end together, with an evaluation after each."""

    def is_over(self) -> bool:
        """Return True once every stage has trained for all epochs.

        An epoch that has begun is completed, even if stages have finished in it. If a process
        has asked to stop, this is the end as well; then batches stay in flight.
        """
        session, state = self.session, self.state
        if any(session.world.gather(state.stop_requested)):
            return True
        enough = self.request.budget.is_spent(len(state.history), state.updates)
        return enough and not state.batches and session.engine.finished

    def end_epoch(self) -> bool:
        """Evaluate, and add the result of the epoch to the history of all processes."""
        session, state, method = self.session, self.state, self.session.setup.method
        self.stop_if_asked()
        # Complete batches in flight where the method or the end of the training needs it.
        state.meter.add(session.ticks.end_epoch())
        if method.epoch_end == "drain":
            state.drain()
        is_last = self.request.budget.is_spent(len(state.history) + 1, state.updates)
        if is_last and session.engine.finished:
            state.drain()
            state.meter.add(session.ticks.finish())
        # Merge the counts of all processes, and evaluate.
        state.pause()
        rows = session.world.gather([state.meter.values(), state.samples, state.seconds])
        evaluation = self.evaluate()
        if evaluation is not None:
            session.ticks.note_loss(state.epoch, evaluation.loss)
        epoch = self.merge_rows(rows, state.epoch, evaluation)
        if not method.free_running:
            epoch = replace(epoch, updates=state.updates)
        # Add the epoch to the history, show it, and tell the callbacks.
        state.end_epoch(epoch)
        self.progress.epoch(
            EndedEpoch(epoch.number, epoch.loss, evaluation, max(epoch.skipped))
        )
        for callback in state.callbacks:
            callback.on_epoch(self.trainer, epoch)
        self.save(None)
        return True

    def finish(self) -> None:
        """Do nothing: every epoch has ended for all."""


class OwnEpochs(Fit):
    """Epochs that the stage of this process counts for itself, without waiting for others.

    Results of single stages come together at the end, where all evaluate.
    """

    def is_over(self) -> bool:
        """Return True once every stage has trained for all epochs."""
        return bool(self.state.rows) and self.session.engine.finished

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
        loss = state.meter.mean_loss(None)
        stage = state.meter.local_stage(None, session.cut.count - 1)
        shown = math.nan if loss is None else loss
        self.progress.epoch(EndedEpoch(state.epoch, shown, stage=stage))
        state.end_own_epoch()
        session.ticks.end_epoch()
        self.save(None)
        return True

    def finish(self) -> None:
        """Meet the other processes, evaluate, and merge the epochs of all stages."""
        session, state = self.session, self.state
        first = state.first_epoch
        session.ticks.finish()
        self.stop_if_asked()
        # Merge the rows of all stages, of which some have done more epochs.
        epochs = []
        gathered = session.world.gather(state.rows)
        for number, rows in enumerate(zip_longest(*gathered), first):
            present = [row for row in rows if row is not None]
            epochs.append(self.merge_rows(present, number, None))
        # Evaluate once, and tell the callbacks of all epochs.
        epochs[-1] = replace(epochs[-1], evaluation=self.evaluate())
        state.history = epochs
        for epoch in epochs:
            for callback in state.callbacks:
                callback.on_epoch(self.trainer, epoch)

"""The loop of ``fit``: epochs of batches with an evaluation after each, until all have learned.

Stages that keep step go through each epoch together. Those that run freely in processes of
their own meet at the end only.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from hocket.engine.async_process import AsyncProcess
from hocket.errors import DataError, OptionError
from hocket.training.fit_state import FitState
from hocket.training.interrupt import Interrupt
from hocket.training.metrics import EpochResult, EvaluationResult, TrainingMeter
from hocket.training.progress_bar import Progress
from hocket.training.resume import Save
from hocket.training.session import Session, count_samples
from hocket.tree import Tree

Batches = Iterable[tuple[Tree, Tree]]


class Loop:
    """Takes a course through its epochs.

    Args:
        rig: What is trained.
        course: Where the training has come to.
        train: The training data.
        validation: What to evaluate on after each epoch, if on anything.
        epochs: How many there are to be.
        length: Batches in an epoch, if that is known.
        again: Whether the epochs are those of a training that had begun before a restart.
        bar: Told of batches and epochs.
        interrupt: Whether the training is asked to stop.
        save: What leaves checkpoints.
    """

    def __init__(
        self,
        rig: Session,
        course: FitState,
        train: Batches,
        validation: Batches | None,
        *,
        epochs: int,
        length: int | None,
        again: bool,
        bar: Progress,
        interrupt: Interrupt,
        save: Save,
    ) -> None:
        self._rig = rig
        self._course = course
        self._train = train
        self._validation = validation
        self._epochs = epochs
        self._length = length
        self._again = again
        self._bar = bar
        self._interrupt = interrupt
        self._save = save
        self._free = rig.setup.method.replay is not None
        self._aimed = False

    def run(self, told: Callable[[EpochResult], None]) -> None:
        """Train until every stage has learned for all epochs; ``told`` hears of each."""
        course = self._course
        sized = self._rig.setup.resumable or self._rig.detached
        if self._free and self._length is None and sized:
            raise OptionError(
                "each stage counts its own epochs, and the training data do not say how many "
                "batches they have; pass a list or a DataLoader"
            )
        self._aim()  # else what was resumed would not know that it is at its end
        if self._rig.detached:
            course.history = self._apart()
            for epoch in course.history:
                told(epoch)
        # An epoch that has begun is gone through, even if stages have learned enough in it.
        while len(course.history) < self._epochs or course.batches or not self._done:
            epoch = self._epoch(final=len(course.history) >= self._epochs - 1)
            course.end_epoch(epoch)
            error = epoch.evaluation.error if epoch.evaluation else None
            self._bar.epoch(epoch.number, epoch.loss, error, max(epoch.skipped))
            told(epoch)
            self._save(None)
        self._rig.collect()

    @property
    def _done(self) -> bool:
        return self._rig.engine is not None and self._rig.engine.finished

    def _epoch(self, *, final: bool) -> EpochResult:
        """What is left of an epoch, and an evaluation."""
        rig, course = self._rig, self._course
        self._pass(course)
        self._heed()
        course.meter.add(rig.drain())
        if final and self._done:
            course.meter.add(rig.finish())
        rows = rig.gather([course.meter.values(), course.samples, course.seconds])
        score = rig.evaluate(self._validation) if self._validation is not None else None
        return self._merged(rows, course.epoch, score)

    def _apart(self) -> list[EpochResult]:
        """Train without meeting the other processes until every stage has learned enough.

        What is known of single stages comes together at the end, where all evaluate.
        """
        course = self._course
        first = course.epoch - len(course.rows)
        while not (course.rows and self._done):
            self._pass(course)
            losses = course.meter.losses(None)
            if self._interrupt.asked:
                assert isinstance(self._rig.engine, AsyncProcess)
                self._rig.engine.stop()
                break
            if losses or not course.rows:
                self._bar.epoch(course.epoch, sum(losses) / max(len(losses), 1), None)
                course.end_own_epoch()
                self._rig.drain()
                self._save(None)
            else:  # it only passed on what others still learn from
                course.skip_epoch()
        self._rig.finish()
        self._heed()
        epochs = []
        for number, rows in enumerate(zip_longest(*self._rig.gather(course.rows)), first):
            there = [row for row in rows if row is not None]
            epochs.append(self._merged(there, number, None))
        if self._validation is None:
            return epochs
        score = self._rig.evaluate(self._validation)
        return [*epochs[:-1], replace(epochs[-1], evaluation=score)]

    def _merged(
        self, rows: Sequence[Any], number: int, score: EvaluationResult | None
    ) -> EpochResult:
        """An epoch of what the processes have counted."""
        whole = TrainingMeter()
        for values, _, _ in rows:
            whole.merge(values)
        samples, seconds = max(row[1] for row in rows), max(row[2] for row in rows)
        return whole.epoch(
            number, self._rig.stage_count, score, seconds, samples, own=self._free
        )

    def _heed(self) -> None:
        """Stop where a process was asked to."""
        if asked := max(self._rig.gather(self._interrupt.asked)):
            self._save(None)
            raise KeyboardInterrupt(asked)

    def _aim(self) -> None:
        """Tell the engine what it is to come to, once it is there."""
        if self._rig.engine is not None and not self._aimed:
            self._rig.engine.set_goal(self._epochs, self._length, again=self._again)
            self._aimed = True
            if self._rig.detached and not self._again:
                self._save(None)  # for one that is killed before the first that is due

    def _pass(self, course: FitState) -> None:
        """Go through what is left of an epoch's data; what came of it is in the course."""
        rig, number = self._rig, course.epoch
        batches = rig.with_engine(course.remaining_batches(self._train))
        if rig.reads_data:
            shared = rig.world.agreement_store() if rig.world is not None else None
            batches = self._interrupt.until_asked(batches, shared)
        self._aim()
        for inputs, targets in rig.engine.ticks(batches) if rig.engine else ():
            course.batches += 1
            course.add(rig.step(inputs, targets, number), count_samples(inputs))
            self._bar.batch(course.meter.losses(None if self._free else number)[-1:])
            self._save(rig.engine.tick_count if rig.engine else None)
        over = self._interrupt.asked or (self._free and self._done)
        if course.samples == 0 and rig.reads_data and not over:
            raise DataError(
                f"epoch {number}: the training data have no batches; an iterator can be used "
                "once, so pass a list or a DataLoader"
            )

"""Progress of a fit: finished epochs, and counters of the current one."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from hocket.data.batches import Batches
from hocket.data.loader_state import loader_state, remaining_batches, restore_loader
from hocket.distributed.world.solo_world import SoloWorld
from hocket.distributed.world.world import World
from hocket.training.callback import CallbackList
from hocket.training.results.meters import TrainingMeter
from hocket.training.results.metrics import EpochResult, EvaluationResult


class FitState:
    """Progress of one ``fit``, or of a loop of the caller's, also from before a restart.

    Args:
        epoch: Number of epochs that the trainer has done, in all its fits.
        ungathered: Batches since the last update that wait for others.
        earlier_updates: Updates that the batches of earlier fits lead to.

    Attributes:
        epoch: Number of epochs done.
        history: Results of the epochs that are done.
        batches: Batches of the current epoch that have entered.
        samples: Samples of these batches; 0 in a process that reads no data.
        ungathered: Batches that have entered since the last update.
        updates: Updates of a stage that the batches of this ``fit`` lead to.
        evaluated: The same number, at the last evaluation within an epoch.
        length: Batches in the current epoch, said at its begin; None if unknown.
        train: Training data of the ``fit`` under way, whose position and random state are kept;
            None in a loop of the caller's.
        thread: Thread that trains it.
        meter: Losses and staleness of the current epoch.
        rows: Epochs that the stage has counted for itself, if stages run freely: values of the
            meter, samples and seconds of each.
        callbacks: Callbacks, whose states checkpoints keep.
        stop_requested: True if this process has asked to stop after the current epoch.
        resumed: True if it began before a restart, and the next ``fit`` continues it.
        trained_s: Time that this process has trained in this ``fit``, until the last pause.
    """

    def __init__(self, epoch: int = 0, ungathered: int = 0, earlier_updates: int = 0) -> None:
        self.epoch, self.earlier_updates = epoch, earlier_updates
        self.history: list[EpochResult] = []
        self.batches = self.samples = 0
        self.length: int | None = None
        self.train: object = None
        self.thread = 0
        self.updates = self.evaluated = 0
        self.meter = TrainingMeter()
        self.rows: list[Any] = []
        self.callbacks = CallbackList()
        self.stop_requested = self.resumed = False
        self.ungathered = ungathered
        self.trained_s = 0.0
        self._seconds = 0.0  # of the current epoch before ``_start``
        self._start: float | None = None  # while the clock stands still
        self._loader_state: dict[str, Any] | None = None  # at the start of the current epoch

    @property
    def first_epoch(self) -> int:
        """Number of the first epoch of this ``fit``."""
        return self.epoch - len(self.history) - len(self.rows)

    @property
    def seconds(self) -> float:
        """Time that the current epoch has taken so far."""
        return self._seconds + self._running_s()

    def pause(self) -> None:
        """Stop the clock: the time until the next data is not the epoch's."""
        passed_s = self._running_s()
        self.trained_s += passed_s
        self._seconds, self._start = self._seconds + passed_s, None

    def _running_s(self) -> float:
        return 0.0 if self._start is None else time.perf_counter() - self._start

    def newest(self, epoch: int | None, last: int) -> str:
        """Return the newest numbers of the current epoch as text; empty before its first loss.

        The device completes its work first.

        Args:
            epoch: Epoch whose losses count; None for all, where each stage has its own.
            last: Last stage, whose losses are the network's.
        """
        if (loss := self.meter.newest_loss(epoch)) is None:
            return ""
        lr = self.meter.newest_lr
        rate = "" if lr is None else f", lr {lr:.3g}"
        speed = self.samples / max(self.seconds, 1e-9)
        samples = f", {speed:,.0f} samples/s" if speed else ""
        return f"loss {loss:.3f}{self.meter.owner(epoch, last)}{rate}{samples}"

    @contextmanager
    def untimed(self) -> Iterator[None]:
        """Context manager whose time is not the epoch's, such as an evaluation."""
        self.pause()
        yield
        self._start = time.perf_counter()

    def remaining_batches(
        self, train: Iterable[Any], count: Callable[[Any], int], world: World | SoloWorld
    ) -> Iterator[Any]:
        """Return the batches of the current epoch that have not entered.

        Args:
            train: The training data.
            count: Returns the number of samples of a batch.
            world: This process among the others. If it reads no data, there are no batches,
                and a loader starts no workers for them.

        Raises:
            DataError: They are not the data that the epoch began with.
        """
        # Replicas read the same data, and one of them may have drawn numbers for itself.
        reads, own = world.reads_data, self._loader_state or loader_state(train)
        first = world.broadcast(own) if world.replicas > 1 else own
        self._loader_state = first if reads else own
        restore_loader(self._loader_state, train, begun=reads and self.batches > 0)
        self._start = time.perf_counter()
        if not reads and not isinstance(train, Batches):  # which counts its epochs
            return iter(())
        return remaining_batches(train, self.batches, count, self.samples)

    def enter(self, accumulate: int, samples: int) -> None:
        """Count a batch that enters.

        Args:
            accumulate: Batches in an update.
            samples: Samples of the batch; 0 in a process that reads no data.
        """
        self.batches += 1
        self.samples += samples
        self.ungathered += 1
        if self.ungathered == accumulate:
            self.updates, self.ungathered = self.updates + 1, 0

    def entered(self, length: int | None, accumulate: int) -> int:
        """Return the batches of this ``fit`` that have entered.

        Args:
            length: Batches in an epoch; None if unknown.
            accumulate: Batches in an update.
        """
        if length is None:
            return self.updates * accumulate + self.ungathered
        return (len(self.history) + len(self.rows)) * length + self.batches

    def drain(self) -> None:
        """Count the update of the remaining batches, if there are any, at a drained end."""
        self.updates, self.ungathered = self.updates + (self.ungathered > 0), 0

    def end_epoch(self, result: EpochResult) -> None:
        """End the current epoch."""
        self.history.append(result)
        self.epoch += 1
        self._reset()

    def end_epoch_of_loop(self) -> None:
        """End the current epoch of a loop of the caller's; a ``fit`` continues none."""
        self.epoch, self.resumed = self.epoch + 1, False
        self._reset()

    def end_fit(self) -> None:
        """Let the data of a ``fit`` go; a later checkpoint has their position nevertheless."""
        self.pause()
        self._loader_state = self._loader_state or loader_state(self.train)
        self.train = None

    def end_own_epoch(self) -> None:
        """End the current epoch of this stage; the others may be in other epochs."""
        self.rows.append([self.meter.values(), self.samples, self.seconds])
        self.epoch += 1
        self._reset()

    def skip_epoch(self) -> None:
        """End a pass over the data in which the stage, which had finished, did not train."""
        self.rows[-1][2] += self.seconds
        self._reset()

    def _reset(self) -> None:
        self.pause()
        self.batches = self.samples = 0
        self.meter = TrainingMeter()
        self._seconds, self._loader_state = 0.0, None

    def state_dict(self, stage: int, *, metered: bool) -> dict[str, Any]:
        """Return what a stage keeps: its meter, and the state of the data loader.

        Args:
            stage: Number of the stage.
            metered: False for a replica that shares the meter of another one.
        """
        return {
            "meter": self.meter.values(stage) if metered else TrainingMeter().values(),
            "loader_state": self._loader_state or loader_state(self.train),
            "length": self.length,
            "rows": list(self.rows),
        }

    def summary(self) -> dict[str, Any]:
        """Return what is the same for all stages, as JSON values."""
        return {
            "epoch": self.epoch,
            "history": [asdict(epoch) for epoch in self.history],
            "batches": self.batches,
            "samples": self.samples,
            "seconds": self.seconds,
            "updates": [self.updates, self.ungathered, self.evaluated],
            "callbacks": self.callbacks.state_dict(),
        }

    def load_state_dict(
        self, summary: dict[str, Any], first: dict[str, Any], meters: Sequence[Any]
    ) -> None:
        """Continue from the state of another fit.

        Args:
            summary: What was the same for all stages.
            first: What the first stage in the checkpoint kept.
            meters: Values of the meters of the stages of this process.
        """
        self.epoch, self.resumed = summary["epoch"], True
        self.history = [_parse_epoch(values) for values in summary["history"]]
        self.batches, self.samples = summary["batches"], summary["samples"]
        self._seconds = summary["seconds"]
        self.updates, self.ungathered, self.evaluated = summary["updates"]
        self._loader_state = first["loader_state"]
        self.length = first["length"]
        self.rows = [list(row) for row in first["rows"]]
        for values in meters:
            self.meter.merge(values)


def _parse_epoch(values: dict[str, Any]) -> EpochResult:
    evaluation = values["evaluation"]
    if evaluation is not None:
        evaluation = EvaluationResult(**evaluation | {"exits": tuple(evaluation["exits"])})
    rows = {name: tuple(values[name]) for name in ("staleness", "skipped")}
    return EpochResult(**values | rows | {"evaluation": evaluation})

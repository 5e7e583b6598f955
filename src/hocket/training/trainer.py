"""What a user holds: a network in stages that trains on whatever batches it is given."""

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hocket.checkpoint import Checkpoints
from hocket.distributed.world import assign_device
from hocket.engine.async_clock import StageTiming, build_stage_speeds
from hocket.engine.event import Event, Watcher
from hocket.engine.gradient_error import GradientErrorListener, build_gradient_error_meter
from hocket.engine.setup import BatchNorm, Precision, Setup
from hocket.errors import HocketError, OptionError
from hocket.losses import Loss, cross_entropy
from hocket.methods import FDG
from hocket.methods.method import Method
from hocket.partition import Plan
from hocket.stage.nonfinite import OnNaN
from hocket.stage.optimizer import OptimizerFactory, SchedulerFactory, SchedulerUnit
from hocket.stage.stage import Stage
from hocket.timeline import Timeline
from hocket.training.fit import Loop
from hocket.training.fit_state import FitState
from hocket.training.interrupt import Interrupt
from hocket.training.metrics import EpochResult, EvaluationResult
from hocket.training.progress_bar import progress_bar
from hocket.training.resume import resume_from, saving
from hocket.training.session import Session, count_stages, device_of
from hocket.training.state import ResumePoint
from hocket.transport.codecs import Codec, Exact
from hocket.tree import Tree


class Trainer:
    """Trains a network that is cut into stages, all of them at work in every tick.

    Args:
        network: The network (see :func:`hocket.cut`), or the stages as a list of modules.
        stages: How many stages to balance (2 if not given), a Plan, or the stages as a list of
            modules that together hold the network's parameters.
        method: The method; FDG if not given.
        optimizer: Builds an optimizer from the parameters of one stage.
        scheduler: Builds a scheduler from a stage's optimizer.
        scheduler_unit: Whether the scheduler counts ``epoch`` or ``update``.
        loss: The objective of the last stage, and of auxiliary heads.
        seed: Where randomness of stages and initial weights of heads come from.
        device: Where to compute; by default where the network's parameters are.
        precision: ``fp32``, or ``bf16`` for autocast.
        channels_last: Whether 4-dimensional tensors are kept in that memory format.
        watchers: Called after every action with its event and its stage.
        gradient_error_every: Compare the gradients of every n-th batch with the true ones.
        on_gradient_error: Called with each comparison.
        replicas: Where processes train together: how many share the work of a stage.
        timeout_s: How long a process may let another one wait before that is a hang.
        checksum: Whether tensors that go to another process leave with a checksum.
        record_timeline: Whether to keep the span of every action, for ``timeline``.
        resumable: Whether to keep what a checkpoint needs of batches in flight: with ``stash``
            and ``live`` the weights and statistics of each of their forwards.
        batchnorm: Over which inputs BatchNorm takes its statistics where replicas share a
            batch: ``local`` for those of each, ``shared`` for all of them.
        codec: How what stages send to each other is written, such as ``VQ(groups=16)``; exactly
            if not given.
        stage_speeds: How fast each stage is, for a method whose stages run freely; equally if not
            given.
        stage_timing: Whether such stages take their turns at ``regular`` intervals, or at ``random``.
        on_nan: Whether a batch that makes something NaN or infinite is to ``stop`` the
            training, or to be one that it does ``skip``.
        skip_batches: Batches to skip whatever they hold, by their number over all epochs.

    Where torch.distributed has a world of several processes (``hocket launch``, ``torchrun``),
    each takes one stage; the script stays the same. The data are read where the first stage is.

    Raises:
        CutError: The network cannot be cut so.
        OptionError: An option is out of range or contradicts another.
        WorldError: There are not as many processes as stages times replicas.
    """

    def __init__(
        self,
        network: nn.Module | Sequence[nn.Module],
        *,
        optimizer: OptimizerFactory,
        stages: int | Plan | Sequence[nn.Module] | None = None,
        method: Method | None = None,
        scheduler: SchedulerFactory | None = None,
        scheduler_unit: SchedulerUnit = "epoch",
        loss: Loss = cross_entropy,
        seed: int = 0,
        device: torch.device | str | None = None,
        precision: Precision = "fp32",
        channels_last: bool = False,
        watchers: Sequence[Watcher] = (),
        gradient_error_every: int = 0,
        on_gradient_error: GradientErrorListener | None = None,
        replicas: int = 1,
        timeout_s: float = 60.0,
        checksum: bool = True,
        record_timeline: bool = False,
        codec: Codec | None = None,
        resumable: bool = False,
        batchnorm: BatchNorm = "local",
        stage_speeds: Sequence[float] | None = None,
        stage_timing: StageTiming = "regular",
        on_nan: OnNaN = "stop",
        skip_batches: Iterable[int] = (),
    ) -> None:
        method = method or FDG()
        comparing = build_gradient_error_meter(
            method, gradient_error_every, loss, on_gradient_error
        )
        if not isinstance(network, nn.Module):
            if stages is not None:
                raise OptionError(
                    "the network is a list of stages; leave the option stages out"
                )
            stages = list(network)
            network = nn.Sequential(*stages)
        stages = 2 if stages is None else stages
        place = int(os.environ.get("LOCAL_RANK", "0"))
        asked = torch.device(device) if device is not None else device_of(network)
        setup = Setup(
            method=method,
            loss=loss,
            optimizer=optimizer,
            scheduler=scheduler,
            scheduler_unit=scheduler_unit,
            seed=seed,
            device=assign_device(asked, place, torch.cuda.device_count()),
            precision=precision,
            record_timeline=record_timeline,
            codec=codec or Exact(),
            checksum=checksum,
            resumable=resumable,
            batchnorm=batchnorm,
            stage_speeds=build_stage_speeds(
                method, count_stages(stages), stage_speeds, stage_timing, seed
            ),
            on_nan=on_nan,
            skip_batches=frozenset(skip_batches),
        )
        self._rig = Session(
            network,
            stages,
            setup,
            channels_last=channels_last,
            watchers=watchers,
            compare=comparing,
            replicas=replicas,
            timeout_s=timeout_s,
        )
        self._course = FitState()
        self._resumed = False  # whether the course is one that the next fit goes on with

    @property
    def network(self) -> nn.Module:
        """The network, with its own names; among processes ``collect`` brings its weights."""
        return self._rig.network

    @property
    def plan(self) -> Plan | None:
        """Where the network is cut, once that is known; None for stages given as modules."""
        return self._rig.plan

    @property
    def stage_count(self) -> int:
        """How many stages there are."""
        return self._rig.stage_count

    @property
    def epoch(self) -> int:
        """How many whole epochs are behind it."""
        return self._course.epoch

    @property
    def is_main_process(self) -> bool:
        """Whether this is the process that should print and write files."""
        return self._rig.is_main

    @property
    def process_name(self) -> str | None:
        """What this process is called among several, such as stage1; None where it is alone."""
        return self._rig.process_name

    @property
    def stages(self) -> Sequence[Stage]:
        """The stages at work in this process.

        Raises:
            HocketError: No batch has been seen yet, so that nothing has been built.
        """
        if self._rig.engine is None:
            raise HocketError("the stages are built at the first batch; call prepare or step")
        return self._rig.engine.stages

    def prepare(self, inputs: Tree) -> None:
        """Cut the network and build its stages for inputs like these; later calls do nothing.

        Raises:
            CutError: The network cannot be cut so.
            OptionError: A stage cannot honour the method.
        """
        self._rig.prepare(inputs)

    def step(self, inputs: Tree, targets: Tree) -> float | None:
        """One tick, at which a batch enters; gives the loss of the batch that reached the end.

        With delays that is an earlier batch, and None until the first one has arrived. Among
        several processes the batch is that of the first stage, and the last one has the loss.

        Raises:
            NonFiniteError: An output, loss or gradient is NaN or infinite.
        """
        self.prepare(inputs)
        with self._rig.reporting_failures():
            self._course.batches += 1
            events = self._rig.step(inputs, targets, self.epoch)
        last = self.stage_count - 1
        losses = [
            event.report.loss
            for event in events
            if event.action.kind == "B" and event.action.stage == last
        ]
        return losses[0] if losses else None

    def end_epoch(self) -> list[Event]:
        """Count an epoch: schedulers follow, and a method that drains completes its batches."""
        self._course.epoch += 1
        self._course.batches = 0
        return self._rig.drain()

    def finish(self) -> list[Event]:
        """Complete every batch in flight and apply every gradient."""
        return self._rig.finish()

    def fit(
        self,
        train: Iterable[tuple[Tree, Tree]],
        validation: Iterable[tuple[Tree, Tree]] | None = None,
        *,
        epochs: int,
        on_epoch: Callable[[EpochResult], None] | None = None,
        progress: bool = True,
        checkpoints: Checkpoints | None = None,
    ) -> list[EpochResult]:
        """Train, and evaluate after every epoch.

        After ``resume`` it goes on with the epochs of the ``fit`` that was saved. With
        checkpoints, Ctrl-C and SIGTERM end the training after the present tick.

        Args:
            train: Any iterable of (inputs, targets); gone through once for each epoch.
            validation: The same for evaluation.
            epochs: How many times. Where stages run freely each counts for itself, and the data
                are gone through until the slowest has learned for as many.
            on_epoch: Called after each epoch with what it came to.
            progress: Whether to show a bar on a terminal, or a line per epoch elsewhere.
            checkpoints: Where and when to leave checkpoints; none if not given.

        Raises:
            OptionError: There is less than one epoch, or the trainer is not resumable.
            CheckpointError: One cannot be written, and the training is to stop for that.
            DataError: The training data have no batches.
            NonFiniteError: An output, loss or gradient is NaN or infinite.
        """
        if epochs < 1:
            raise OptionError(f"epochs is {epochs}; use at least 1")
        length = len(train) if isinstance(train, Sized) else None
        if not (again := self._resumed):
            self._course = FitState(self.epoch)
        self._resumed, course, rig = False, self._course, self._rig
        stops = (signal.SIGINT, signal.SIGTERM)[: 1 if checkpoints is None else 2]
        orderly = rig.world is not None or checkpoints is not None
        pace = rig.setup.stage_speeds
        passes = epochs if pace is None else ceil(epochs * pace.speeds[0] / min(pace.speeds))
        with (
            rig.reporting_failures(),
            progress_bar(passes, length, shown=progress and self.is_main_process) as bar,
            Interrupt(stops if orderly else ()) as interrupt,
            saving(checkpoints, rig, course, train) as save,
        ):
            loop = Loop(
                rig,
                course,
                train,
                validation,
                epochs=epochs,
                length=length,
                again=again,
                bar=bar,
                interrupt=interrupt,
                save=save,
            )
            loop.run(on_epoch or (lambda epoch: None))
        return course.history

    @contextmanager
    def saving(self, checkpoints: Checkpoints) -> Iterator[Callable[[], None]]:
        """Inside, what is given leaves a checkpoint in a loop of your own, where one is due.

        It is for after each ``step``. The state is copied there and written meanwhile; at the
        end the last one is on the disk. Among several processes all must call it.

        Raises:
            CheckpointError: One cannot be written, and the training is to stop for that.
            OptionError: The trainer is not resumable.
        """
        rig = self._rig
        with rig.reporting_failures(), saving(checkpoints, rig, self._course, None) as save:
            yield lambda: save(rig.engine.tick_count if rig.engine is not None else None)

    def save(self, folder: Path | str, *, keep: int = 3, note: Any = None) -> None:
        """Write a checkpoint of the training as it is between two ticks, and wait for it.

        Among several processes all must call it after the same tick.

        Args:
            folder: Where checkpoints are; each has a folder of its own in it.
            keep: How many of the newest stay.
            note: Plain values for ``resume`` to give back.

        Raises:
            CheckpointError: It cannot be written; those before are as they were.
            OptionError: The trainer is not resumable.
            HocketError: No batch has been seen yet.
        """
        kind = Checkpoints(Path(folder), keep=keep, on_error="stop", note=lambda: note)
        with (
            self._rig.reporting_failures(),
            saving(kind, self._rig, self._course, None) as save,
        ):
            save(None)

    def resume(self, folder: Path | str) -> ResumePoint:
        """Go on from the newest checkpoint that is whole, or from a given one.

        With the stages of the checkpoint, in one process or several, the training goes on as
        if it had never stopped. With others, weights and optimizers go on under the network's
        names, and batches in flight are dropped; a warning says so. A loop of the caller's own
        begins at the position that is returned; ``fit`` finds it by itself.

        Among several processes all must call it.

        Args:
            folder: What ``save`` was given, or one checkpoint in it.

        Raises:
            CheckpointError: There is none that is whole, or it is of another training; nothing
                has been changed then.
        """
        with self._rig.reporting_failures():
            self._course, position = resume_from(self._rig, Path(folder))
        self._resumed = True
        return position

    def evaluate(self, batches: Iterable[tuple[Tree, Tree]]) -> EvaluationResult:
        """The network as it is now on other data; training goes on as if nothing had been.

        Among several processes all must call it, and all get the same score.

        Raises:
            DataError: There are no batches.
        """
        return self._rig.evaluate(batches)

    def gather(self, value: Any) -> list[Any]:
        """What every process gives here, in the order of stages; plain JSON values."""
        return self._rig.gather(value)

    def timeline(self) -> Timeline:
        """What all stages spent their time on so far, on the clock of the first process.

        Among several processes all must call it. Only of use with ``trace``.
        """
        return self._rig.timeline()

    @property
    def sent_bytes(self) -> int:
        """What this process has sent to others so far."""
        return self._rig.engine.sent_bytes if self._rig.engine is not None else 0

    def collect(self) -> None:
        """Bring the weights and statistics of all stages into ``network``, in every process.

        ``fit`` ends with it. Among several processes all must call it.
        """
        self._rig.collect()

    def state_dict(self) -> dict[str, Any]:
        """The weights and statistics of all stages, under the names of the network.

        Among several processes all must call it, and all get all of it.
        """
        self.collect()
        state: dict[str, Any] = self.network.state_dict()
        return state

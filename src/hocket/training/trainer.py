"""The trainer that a user holds: a network in stages that trains on batches it is given."""

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
from hocket.distributed.device import assign_device
from hocket.engine.engine import Engine
from hocket.engine.event import Event, Watcher
from hocket.engine.gradient_error import GradientErrorListener, build_gradient_error_meter
from hocket.errors import HocketError, OptionError
from hocket.methods import FDG
from hocket.methods.method import Method
from hocket.methods.stage_speeds import StageTiming, build_stage_speeds
from hocket.partition import Plan
from hocket.signals.losses import Loss, cross_entropy
from hocket.stage.nonfinite import OnNaN
from hocket.stage.optimizer import OptimizerFactory, SchedulerFactory, SchedulerUnit
from hocket.stage.setup import BatchNorm, Precision, Setup
from hocket.stage.stage import Stage
from hocket.timeline import Timeline
from hocket.training.cut_network import count_stages, find_device
from hocket.training.fit import FitPlan, fit
from hocket.training.fit_state import FitState
from hocket.training.interrupt import Interrupt
from hocket.training.metrics import EpochResult, EvaluationResult
from hocket.training.progress_bar import progress_bar
from hocket.training.resume import resume_from, saving
from hocket.training.session import Session
from hocket.training.state import ResumePoint
from hocket.transport.codecs import Codec, Exact
from hocket.tree import Tree


class Trainer:
    """Trains a network that is cut into stages, all of them at work in every tick.

    Args:
        network: The network (see :func:`hocket.cut`), or the stages as a list of modules.
        stages: Number of stages to balance (2 if not given), a Plan, or the stages as a list
            of modules that together hold the network's parameters.
        method: The method; FDG if not given.
        optimizer: Builds an optimizer from the parameters of one stage.
        scheduler: Builds a scheduler from a stage's optimizer.
        scheduler_unit: Unit that the scheduler counts: ``epoch`` or ``update``.
        loss: The objective of the last stage, and of auxiliary heads.
        seed: Seed of the randomness of stages and of initial weights of heads.
        device: Device to compute on; by default that of the network's parameters.
        precision: ``fp32``, or ``bf16`` for autocast.
        channels_last: Keep 4-dimensional tensors in that memory format.
        watchers: Called after every action with its event and its stage.
        gradient_error_every: Compare the gradients of every n-th batch with the true ones.
        on_gradient_error: Called with the result of each comparison.
        replicas: Number of processes that share the work of a stage, among several processes.
        timeout_s: Seconds that a process may let another one wait before that is a hang.
        checksum: Send tensors to other processes with a checksum.
        record_timeline: Keep the time span of every action, for ``timeline``.
        resumable: Keep what a checkpoint needs of batches in flight: with ``stash`` and
            ``live`` the weights and statistics of each of their forwards.
        batchnorm: Inputs over which BatchNorm takes its statistics where replicas share a
            batch: ``local`` for those of each, ``shared`` for all of them.
        codec: Codec of what stages send to each other, such as ``VQ(groups=16)``; exact if
            not given.
        stage_speeds: Speed of each stage, for a method whose stages run freely; equal speeds
            if not given.
        stage_timing: Intervals between the turns of such stages: ``regular`` or ``random``.
        on_nan: ``stop`` the training at a batch that makes something NaN or infinite, or
            ``skip`` that batch.
        skip_batches: Batches to skip in any case, by their number over all epochs.

    Where torch.distributed has a world of several processes (``hocket launch``, ``torchrun``),
    each takes one stage; the script stays the same. The data are read by the process of the
    first stage.

    Attributes:
        network: The network, with its own names; among processes ``collect`` brings its
            weights.

    Raises:
        CutError: The network cannot be cut like this.
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
        meter = build_gradient_error_meter(
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
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        wanted = torch.device(device) if device is not None else find_device(network)
        count = count_stages(stages)
        setup = Setup(
            method=method,
            loss=loss,
            optimizer=optimizer,
            scheduler=scheduler,
            scheduler_unit=scheduler_unit,
            seed=seed,
            device=assign_device(wanted, local_rank, torch.cuda.device_count()),
            precision=precision,
            channels_last=channels_last,
            record_timeline=record_timeline,
            codec=codec or Exact(),
            checksum=checksum,
            resumable=resumable,
            batchnorm=batchnorm,
            replicas=replicas,
            timeout_s=timeout_s,
            stage_speeds=build_stage_speeds(method, count, stage_speeds, stage_timing, seed),
            on_nan=on_nan,
            skip_batches=frozenset(skip_batches),
        )
        self.network = network
        self._session = Session(network, stages, setup, watchers, meter)
        self._fit_state = FitState()
        self._resumed = False  # True if the next fit continues the fit state

    @property
    def engine(self) -> Engine:
        """Engine that executes the program; it has no stages before the first batch."""
        return self._session.engine

    @property
    def plan(self) -> Plan | None:
        """Cuts of the network once they are known; None for stages given as modules."""
        return self._session.cut.plan

    @property
    def stage_count(self) -> int:
        """Number of stages."""
        return self._session.cut.count

    @property
    def epoch(self) -> int:
        """Number of epochs done."""
        return self._fit_state.epoch

    @property
    def is_main_process(self) -> bool:
        """True in the one process that should print and write files."""
        return self._session.world.is_main

    @property
    def process_name(self) -> str | None:
        """Name of this process among several, such as stage1; None if it is alone."""
        return self._session.world.process_name

    @property
    def stages(self) -> Sequence[Stage]:
        """Stages at work in this process.

        Raises:
            HocketError: No batch has been seen yet, so that nothing has been built.
        """
        if not self._session.prepared:
            raise HocketError("the stages are built at the first batch; call prepare or step")
        return self.engine.stages

    @property
    def sent_bytes(self) -> int:
        """Bytes that this process has sent to others so far."""
        return self.engine.sent_bytes

    def prepare(self, inputs: Tree) -> None:
        """Cut the network and build its stages for inputs like these; later calls do nothing.

        Args:
            inputs: A batch of inputs, with tensors of shape (B, ...).

        Raises:
            CutError: The network cannot be cut like this.
            OptionError: A stage is not compatible with the method.
        """
        self._session.prepare(inputs)

    def step(self, inputs: Tree, targets: Tree) -> float | None:
        """Do one tick, at which a batch enters; return the loss of the batch that left.

        With delays that is an earlier batch, and None until the first one has left. Among
        several processes the batch is that of the first stage, and the last one has the loss.

        Args:
            inputs: Inputs of the batch, with tensors of shape (B, ...).
            targets: Targets of the batch.

        Raises:
            NonFiniteError: An output, loss or gradient is NaN or infinite.
        """
        self.prepare(inputs)
        with self._session.reporting_failures():
            self._fit_state.batches += 1
            events = self._session.step(inputs, targets, self.epoch)
        last = self.stage_count - 1
        losses = [
            event.report.loss
            for event in events
            if event.action.kind == "B" and event.action.stage == last
        ]
        return losses[0] if losses else None

    def end_epoch(self) -> list[Event]:
        """Count an epoch: schedulers follow, and a method that drains completes its batches."""
        self._fit_state.epoch += 1
        self._fit_state.batches = 0
        return self._session.drain()

    def finish(self) -> list[Event]:
        """Complete every batch in flight and apply every gradient."""
        return self.engine.finish()

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

        After ``resume`` it continues with the epochs of the ``fit`` that was saved. With
        checkpoints, Ctrl-C and SIGTERM end the training after the present tick.

        Args:
            train: Any iterable of (inputs, targets); iterated once for each epoch.
            validation: The same for evaluation.
            epochs: Number of epochs. If stages run freely each counts for itself, and the data
                are repeated until the slowest has trained for this number.
            on_epoch: Called after each epoch with its result.
            progress: Show a bar on a terminal, or a line per epoch elsewhere.
            checkpoints: Folder and interval of checkpoints; none if not given.

        Raises:
            OptionError: There is less than one epoch, or the trainer is not resumable.
            CheckpointError: One cannot be written, and the training is to stop for that.
            DataError: The training data have no batches.
            NonFiniteError: An output, loss or gradient is NaN or infinite.
        """
        if epochs < 1:
            raise OptionError(f"epochs is {epochs}; use at least 1")
        length = len(train) if isinstance(train, Sized) else None
        if not (resumed := self._resumed):
            self._fit_state = FitState(self.epoch)
        self._resumed, state, session = False, self._fit_state, self._session
        signals = (signal.SIGINT, signal.SIGTERM)[: 1 if checkpoints is None else 2]
        orderly = session.world.size > 1 or checkpoints is not None
        shown = progress and self.is_main_process
        with (
            session.reporting_failures(),
            progress_bar(self._passes(epochs), length, shown=shown) as bar,
            Interrupt(signals if orderly else ()) as interrupt,
            saving(checkpoints, session, state, train) as save,
        ):
            plan = FitPlan(
                train=train,
                validation=validation,
                epochs=epochs,
                length=length,
                resumed=resumed,
                progress=bar,
                interrupt=interrupt,
                save=save,
                on_epoch=on_epoch or (lambda epoch: None),
            )
            fit(session, state, plan)
        return state.history

    def _passes(self, epochs: int) -> int:
        """Return the passes over the data until the slowest stage has done its epochs."""
        if (speeds := self._session.setup.stage_speeds) is None:
            return epochs
        return ceil(epochs * speeds.speeds[0] / min(speeds.speeds))

    @contextmanager
    def saving(self, checkpoints: Checkpoints) -> Iterator[Callable[[], None]]:
        """Context manager for loops of your own: call what it gives after each ``step``.

        It writes a checkpoint whenever one is due: the state is copied at once and written in
        the background; at the end of the context the last one is on disk. Among several
        processes all must call it.

        Raises:
            CheckpointError: One cannot be written, and the training is to stop for that.
            OptionError: The trainer is not resumable.
        """
        session = self._session
        with (
            session.reporting_failures(),
            saving(checkpoints, session, self._fit_state, None) as save,
        ):
            yield lambda: save(session.engine.tick_count if session.prepared else None)

    def save(self, folder: Path | str, *, keep: int = 3, note: Any = None) -> None:
        """Write a checkpoint of the training as it is between two ticks, and wait for it.

        Among several processes all must call it after the same tick.

        Args:
            folder: Folder of checkpoints; each has a folder of its own in it.
            keep: Number of the newest ones that stay.
            note: Plain values for ``resume`` to give back.

        Raises:
            CheckpointError: It cannot be written; those before are as they were.
            OptionError: The trainer is not resumable.
            HocketError: No batch has been seen yet.
        """
        checkpoints = Checkpoints(Path(folder), keep=keep, on_error="stop", note=lambda: note)
        session = self._session
        with (
            session.reporting_failures(),
            saving(checkpoints, session, self._fit_state, None) as save,
        ):
            save(None)

    def resume(self, folder: Path | str) -> ResumePoint:
        """Continue from the newest complete checkpoint of a folder, or from a given one.

        With the stages of the checkpoint, in one process or several, the training continues as
        if it had never stopped. With others, weights and optimizers continue under the
        network's names, and batches in flight are dropped; a warning says so. A loop of the
        caller's own begins at the point that is returned; ``fit`` finds it by itself.

        Among several processes all must call it.

        Args:
            folder: Folder that ``save`` was given, or one checkpoint in it.

        Raises:
            CheckpointError: No checkpoint is complete, or it is of another training; nothing
                has been changed then.
        """
        with self._session.reporting_failures():
            self._fit_state, point = resume_from(self._session, Path(folder))
        self._resumed = True
        return point

    def evaluate(self, batches: Iterable[tuple[Tree, Tree]]) -> EvaluationResult:
        """Measure the network as it is now on other data; its training is not disturbed.

        Among several processes all must call it, and all get the same result.

        Raises:
            DataError: There are no batches.
        """
        return self._session.evaluate(batches)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, in the order of stages; plain JSON values."""
        return self._session.world.gather(value)

    def timeline(self) -> Timeline:
        """Return the time spans of all stages so far, on the clock of the first process.

        Among several processes all must call it. Only of use with ``record_timeline``.
        """
        return self._session.timeline()

    def collect(self) -> None:
        """Bring the weights and statistics of all stages into ``network``, in every process.

        ``fit`` ends with it. Among several processes all must call it.
        """
        self._session.collect()

    def state_dict(self) -> dict[str, Any]:
        """Return the weights and statistics of all stages, under the names of the network.

        Among several processes all must call it, and all get all of it.
        """
        self.collect()
        state: dict[str, Any] = self.network.state_dict()
        return state

"""The trainer: a network in stages, trained by ``fit`` or step by step."""

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from threading import get_ident
from typing import Any, Self

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from hocket.checkpoint import Checkpoints
from hocket.data.loader_state import preserve_loader
from hocket.distributed.failures.phases import Phase
from hocket.distributed.folder.restart import environment_number
from hocket.distributed.network.device import assign_device, parse_device
from hocket.engine.engine import Engine
from hocket.engine.event import Event, Watcher
from hocket.engine.gradient_error import GradientErrorListener, build_error_meter
from hocket.errors import HocketError, OptionError, Problems, unknown_name, warn
from hocket.methods import FDG, as_method
from hocket.methods.method import Method
from hocket.methods.simulated.stage_speeds import require_stage_speeds
from hocket.optim.factory import OptimizerFactory
from hocket.options.require import require_list
from hocket.options.texts import describe_options
from hocket.partition import Plan
from hocket.partition.inputs import as_tree
from hocket.signals.losses import Loss, cross_entropy
from hocket.stage.setup import Setup
from hocket.stage.stage import Stage
from hocket.stage.training_options import FIRST_OF_GROUP, TrainingOptions
from hocket.timeline import Span, Timeline
from hocket.training.budget import Budget
from hocket.training.callback import Callback
from hocket.training.checkpoints.find_and_load import ResumePoint
from hocket.training.checkpoints.resume import resume_from
from hocket.training.checkpoints.save import require_checkpoints, saving
from hocket.training.fit.fit import FitRequest, run_fit
from hocket.training.fit.interrupt import ctrl_c_held_back
from hocket.training.fit_state import FitState
from hocket.training.results.metrics import EpochResult, EvaluationResult
from hocket.training.results.own_metrics import Metric
from hocket.training.session.batches import SplitBatch, length_of
from hocket.training.session.cut_network import Stages, count_stages, find_device
from hocket.training.session.evaluation import measure, predict
from hocket.training.session.session import Session
from hocket.tree import Tree, count_samples


class Trainer:
    """Trains a network that is cut into stages, all of them at work in every tick.

    Where torch.distributed has a world of several processes (``hocket launch``, ``torchrun``),
    each takes one stage; the script stays the same. The data are read by the process of the
    first stage. Before the first batch all processes compare what they were given.

    Args:
        network: The network (see :func:`hocket.cut`), or the stages as a list of modules.
        stages: Number of stages to balance (2 if not given), a Plan, or the stages as a list
            of modules that together hold the network's parameters.
        method: The method, also as text such as ``fdg:shrink=0.5``; FDG if not given.
        optimizer: Builds an optimizer from the list of the parameters of one stage. By
            arguments ``stage`` and ``stages``, if it has them, it gets the number of the stage
            and the number of all stages; by one named ``named_parameters`` it gets pairs of
            name and parameter instead of the list.
        loss: The objective of the last stage, and of auxiliary heads.
        device: Device to compute on; by default the device of the network's parameters.
        watchers: Called after every action with its event and its stage.
        on_gradient_error: Called with the result of each comparison of a gradient with the
            true one; needs ``gradient_error_every``.
        split_batch: Returns the inputs and targets of what a loader gives for a batch; needed
            unless that is a pair, or a mapping with ``labels``.
        metrics: Metrics of evaluations, by name: functions of the outputs (B, ...) and the
            targets (B, ...) of a batch, averaged over samples, or objects with ``reset``,
            ``update`` and ``compute``, such as metrics of torchmetrics.
        options: All other options as one value, for type checkers and for reuse.
        **changes: Any of the options below by its name, such as ``clip=1.0``; it replaces the
            one in ``options``.

    Raises:
        CutError: The network cannot be cut like this.
        OptionError: With every option that does not exist, is out of range or contradicts
            another.
        WorldError: There are not as many processes as stages times replicas.

    >>> network = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> sgd = lambda weights: torch.optim.SGD(weights, lr=0.1)
    >>> trainer = Trainer(network, stages=2, method="fdg", optimizer=sgd, clip=1.0)
    >>> batches = [(torch.ones(4, 8), torch.tensor([0, 1, 0, 1]))] * 4
    >>> (epoch,) = trainer.fit(batches, epochs=1, progress=False)
    >>> epoch.samples, trainer.plan
    (16, Plan(cuts=('1',), signature=''))
    """

    def __init__(
        self,
        network: nn.Module | Sequence[nn.Module],
        *,
        stages: int | Plan | Sequence[nn.Module] | None = None,
        method: Method | str | None = None,
        optimizer: OptimizerFactory,
        loss: Loss = cross_entropy,
        device: torch.device | str | None = None,
        watchers: Sequence[Watcher] = (),
        on_gradient_error: GradientErrorListener | None = None,
        split_batch: SplitBatch | None = None,
        metrics: Mapping[str, Metric] | None = None,
        options: TrainingOptions | None = None,
        **changes: Any,
    ) -> None:
        # The six main arguments, without which nothing else can be checked.
        method = FDG() if method is None else as_method(method)
        network, stages = _network_and_stages(network, stages)
        method.require_stages(count := count_stages(stages))
        # All other options, whose problems are raised together.
        if not isinstance(options, TrainingOptions | None):
            raise OptionError(f"options is {options!r}; give a hocket.TrainingOptions")
        given = {**vars(options or TrainingOptions())}
        known = [*inspect.signature(Trainer).parameters]
        problems = Problems(
            [unknown_name("option", n, known) for n in changes if n not in given]
        )
        given |= {name: value for name, value in changes.items() if name in given}
        given["evaluation_loss"] = given["evaluation_loss"] or loss
        every, precision = given["gradient_error_every"], given["precision"]
        meter = problems.attempt(build_error_meter, method, every, on_gradient_error, precision)
        speeds = given["stage_speeds"]
        given["stage_speeds"] = problems.attempt(require_stage_speeds, method, count, speeds)
        here = problems.attempt(_device_here, network, device) or torch.device("cpu")
        setup = Setup(
            **given, method=method, loss=loss, optimizer=optimizer, device=here, found=problems
        )
        # The session, open or closed.
        self._parts = Session(network, stages, setup, watchers, meter, split_batch, metrics)
        self._fit_state = FitState()
        self._warned_of: set[str] = set()

    @property
    def network(self) -> nn.Module:
        """The network, with its own names.

        Among several processes ``collect`` and ``fit`` bring the weights of all stages into it;
        after a ``step`` each process has the current weights of its stage only.
        """
        if not self._parts.cut.collected:
            self._warn_once(
                "this process has the present weights of its own stage only; call "
                "Trainer.collect in all processes before the network is used or saved"
            )
        return self._parts.cut.network

    def __repr__(self) -> str:
        method, count = self._parts.setup.method, self.stage_count
        delays = ", ".join(str(method.delay(k, count)) for k in range(count))
        cuts = f", cut at {', '.join(self.plan.cuts)}" if self.plan else ""
        return f"<Trainer: {method.name}, {count} stages{cuts}, delays {delays}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._parts.close(error)

    def close(self) -> None:
        """Give back threads, connections and memory; the network stays as it is.

        Among several processes all should call it, and ``collect`` before it if the user writes
        the loop. Further calls do nothing. As a context manager the trainer closes itself, and
        after an error it does so without waiting for others. One that is forgotten is closed in
        the background.

        Raises:
            HocketError: A ``fit`` is under way.
        """
        self._require_allowed("close", trains=False)
        self._parts.close()

    @property
    def _session(self) -> Session:
        """The session of a trainer that is open.

        Raises:
            HocketError: The trainer is closed, or has loaded only a part of a checkpoint.
        """
        if self._parts.closed:
            raise HocketError(
                "this trainer is closed: its network remains, and everything else has to be "
                "done before close, or with a new trainer"
            )
        if self._parts.half_loaded:
            raise HocketError(
                "a resume was cut short, in the middle of a checkpoint; resume a new trainer"
            )
        return self._parts

    @property
    def engine(self) -> Engine:
        """Engine that executes the program; it has no stages before the first batch."""
        return self._session.engine

    @property
    def plan(self) -> Plan | None:
        """Cuts of the network once they are known; None for stages given as modules."""
        return self._parts.cut.plan

    @property
    def stage_count(self) -> int:
        """Number of stages."""
        return self._parts.cut.count

    @property
    def epoch(self) -> int:
        """Number of epochs done."""
        return self._fit_state.epoch

    @property
    def updates(self) -> int:
        """Updates that the batches so far lead to, in all fits (since the one resumed)."""
        return self._fit_state.earlier_updates + self._fit_state.updates

    @property
    def trained_s(self) -> float:
        """Seconds that this process has trained in its last ``fit``, evaluations excluded."""
        return self._fit_state.trained_s

    @property
    def has_common_epochs(self) -> bool:
        """True unless stages run freely in separate processes, each with its own epochs.

        Only common epochs are evaluated one by one, and only they can end early.
        """
        return not self._parts.detached

    @property
    def is_main_process(self) -> bool:
        """True in the one process that should print and write files."""
        return self._parts.world.is_main

    @property
    def process_name(self) -> str | None:
        """Name of this process among several, such as stage1; None if it is alone."""
        return self._parts.world.process_name

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
        return self._session.world.sent_bytes

    def prepare(self, inputs: Tree) -> None:
        """Cut the network and build its stages for inputs like these; later calls do nothing.

        ``fit``, ``step`` and ``evaluate`` do this with two samples of their first batch, or all
        of it if the network does not take two.

        Args:
            inputs: Inputs of a batch, which are used as they are.

        Raises:
            CutError: The network cannot be cut like this.
            OptionError: A stage is not compatible with the method.
            DataError: There is no tensor among the inputs.
        """
        with ctrl_c_held_back():
            self._session.prepare(inputs, whole=True)

    def step(self, inputs: Tree, targets: Tree) -> float | None:
        """Do one tick, at which a batch enters; return the loss of the batch that left.

        With delays that is an earlier batch, and None until the first one has left. A batch
        that fills a group to flush takes more ticks, and the loss is the group's last.

        Among several processes the first stage reads the batch, and only the process of the
        last stage returns a loss, as others would have to wait for it. To print it elsewhere,
        let all processes call ``gather(loss)`` from time to time; its last value is the loss.

        Args:
            inputs: Inputs of the batch, with tensors of shape (B, ...).
            targets: Targets of the batch.

        Raises:
            DataError: There is no tensor among the inputs.
            HocketError: A ``fit`` is under way, or gradients are switched off.
            NonFiniteError: An output, loss or gradient is NaN or infinite.

        >>> trainer = Trainer([nn.Linear(8, 8), nn.Linear(8, 2)], optimizer=torch.optim.SGD)
        >>> batch = torch.ones(4, 8), torch.tensor([0, 1, 0, 1])
        >>> [trainer.step(*batch) is None for _ in range(4)]
        [True, False, False, False]
        >>> events = trainer.finish()  # the batch in flight
        """
        # Warn of modes that the caller may not have meant.
        session = self._session
        self._require_allowed("step")
        self._warn_of_autocast()
        if not session.cut.network.training:
            self._warn_once(
                "the network trains in evaluation mode, so that dropout and BatchNorm do not "
                "work as in training; call its train(), which only fit does by itself"
            )
        # Count the batch, and do its tick.
        with session.reporting_failures(), ctrl_c_held_back():
            session.prepare(inputs)
            samples = count_samples(as_tree(inputs)) if session.world.reads_data else 0
            self._fit_state.enter(session.setup.method.accumulate, samples)
            events = session.ticks.step(inputs, targets, self.epoch)
        # Find the loss among the events, if the last stage is in this process.
        last = self.stage_count - 1
        ends = [e for e in events if (e.action.kind, e.action.stage) == ("B", last)]
        return ends[-1].report.loss if ends else None

    def end_epoch(self, loss: float | None = None) -> list[Event]:
        """Count an epoch: schedulers follow, and a method that drains completes its batches.

        Args:
            loss: Validation loss of the epoch, for ``ReduceLROnPlateau``; the same in all
                processes, as ``evaluate`` returns it.

        Raises:
            HocketError: A ``fit`` is under way, or gradients are switched off.
        """
        drains = self._session.setup.method.epoch_end == "drain"
        self._require_allowed("end_epoch", trains=drains)
        if loss is not None:
            self._session.ticks.note_loss(self._fit_state.epoch, loss)
        self._fit_state.end_epoch_of_loop()
        if drains:
            self._fit_state.drain()
        with self._session.reporting_failures(), ctrl_c_held_back():
            return self._session.ticks.end_epoch()

    def finish(self) -> list[Event]:
        """Complete every batch in flight and apply every gradient.

        Raises:
            HocketError: A ``fit`` is under way, or gradients are switched off.

        >>> trainer = Trainer([nn.Linear(8, 8), nn.Linear(8, 2)], optimizer=torch.optim.SGD)
        >>> loss = trainer.step(torch.ones(4, 8), torch.tensor([0, 1, 0, 1]))
        >>> [str(event.action) for event in trainer.finish()]
        ['F1.0', 'B1.0', 'U1.0', 'B0.0', 'U0.0']
        """
        self._require_allowed("finish")
        setup, state = self._session.setup, self._fit_state
        counts_epochs = setup.scheduler is not None and setup.scheduler_unit == "epoch"
        if counts_epochs and state.epoch == 0 and state.batches:
            self._warn_once(
                "the scheduler counts epochs, and none has ended, so the learning rate has not "
                "changed; call end_epoch after each epoch, or give scheduler_unit='update'"
            )
        state.drain()
        self._session.cut.warn_of_new_weights()
        with self._session.reporting_failures(), ctrl_c_held_back():
            return self._session.ticks.finish()

    def fit(
        self,
        train: Iterable[Any],
        validation: Iterable[Any] | None = None,
        *,
        epochs: int | None = None,
        updates: int | None = None,
        evaluate_every: int = 0,
        on_epoch: Callable[[EpochResult], None] | None = None,
        on_evaluation: Callable[[int, EvaluationResult], None] | None = None,
        callbacks: Sequence[Callback] = (),
        progress: bool = True,
        checkpoints: Checkpoints | None = None,
    ) -> list[EpochResult]:
        """Train in training mode for some epochs or updates, and evaluate after every epoch.

        With ``updates=N`` as many batches enter as N updates of a stage take, from as many
        passes through the data as needed, and all of them are completed: every stage makes N
        updates (fewer if batches are skipped), and the last epoch ends there.

        After ``resume`` it continues with the epochs of the ``fit`` that was saved. Ctrl-C,
        SIGTERM and SIGHUP end the training after the current tick, with a KeyboardInterrupt.

        Args:
            train: Any iterable of (inputs, targets), of mappings with ``labels``, or of what
                ``split_batch`` takes; iterated once for each epoch.
            validation: The same for evaluation.
            epochs: Number of epochs. If stages run freely each counts for itself, and the data
                are repeated until the slowest has trained for this number.
            updates: Number of updates, instead of epochs.
            evaluate_every: Updates between evaluations within epochs; 0 for none. Such an
                evaluation comes once as many batches have entered as so many updates take; with
                delays early stages have made fewer.
            on_epoch: Called after each epoch with its result, before the callbacks.
            on_evaluation: Called with the updates and the result of each evaluation within.
            callbacks: Called after steps, epochs and checkpoints, in all processes; they may
                stop it.
            progress: Show a bar on a terminal, or a line per epoch elsewhere.
            checkpoints: Folder and interval of checkpoints; none if not given.

        Raises:
            OptionError: There are not either epochs or updates, at least one, or fewer than a
                resumed training has done; or there are no data to evaluate on, or the trainer
                is not resumable.
            CheckpointError: One cannot be written, and the training is to stop for that.
            DataError: The training data have no batches, or not of these forms.
            HocketError: Another ``fit`` is under way, or gradients are switched off.
            NonFiniteError: An output, loss or gradient is NaN or infinite.

        >>> trainer = Trainer(nn.Linear(8, 2), stages=1, optimizer=torch.optim.SGD)
        >>> batches = [(torch.ones(4, 8), torch.tensor([0, 1, 0, 1]))] * 4
        >>> [epoch.updates for epoch in trainer.fit(batches, epochs=2, progress=False)]
        [4, 8]
        """
        # Check the arguments, the length also against what a resumed training has done.
        self._require_allowed("fit")
        request = FitRequest(
            train=train,
            validation=validation,
            budget=Budget(epochs=epochs, updates=updates, evaluate_every=evaluate_every),
            length=length_of(train),
            on_epoch=on_epoch,
            on_evaluation=on_evaluation,
            callbacks=require_list("callbacks", callbacks),
            progress=progress,
            checkpoints=checkpoints,
        )
        if not self._fit_state.resumed:
            self._fit_state = FitState(self.epoch, self._fit_state.ungathered, self.updates)
        state, session = self._fit_state, self._session
        if not session.setup.method.free_running:  # whose epochs are repeated
            begun = state.batches > 0
            request.budget.require_ahead(len(state.history), state.updates, begun=begun)
        self._warn_of_autocast()
        run_fit(request, self, session, state)
        return state.history

    def request_stop(self) -> None:
        """Let the current ``fit`` end after this epoch, in all processes.

        A request of one process is enough. The epoch is completed and evaluated, and leaves its
        checkpoint; batches in flight stay there.

        Raises:
            OptionError: Stages run freely in separate processes, without common epochs.
            HocketError: No ``fit`` is under way.
        """
        if not self.has_common_epochs:
            raise OptionError(
                f"the stages of method {self._session.setup.method.name!r} run freely in "
                "processes of their own, and no epoch ends for all of them; give fit fewer "
                "epochs, or send a signal to stop"
            )
        if self._fit_state.train is None:
            raise HocketError("request_stop was called, and no fit is under way to be stopped")
        self._fit_state.stop_requested = True

    @contextmanager
    def saving(self, checkpoints: Checkpoints) -> Iterator[Callable[[], None]]:
        """Context manager for your own loop: call its function after each ``step``.

        It writes a checkpoint whenever one is due: the state is copied at once and written in
        the background; at the end of the context the last one is on disk. Among several
        processes all must call it.

        Raises:
            CheckpointError: One cannot be written, and the training is to stop for that.
            OptionError: The trainer is not resumable.
        """
        session = self._session
        require_checkpoints(checkpoints)
        with saving(checkpoints, session, self._fit_state) as save:
            yield lambda: save(session.engine.tick_count if session.prepared else None)

    def save(self, folder: Path | str, *, keep: int = 3, note: Any = None) -> None:
        """Write a checkpoint of the training as it is between two ticks, and wait for it.

        Among several processes all must call it after the same tick. ``resume`` has an example.

        Args:
            folder: Folder of checkpoints, in which each gets a folder.
            keep: Number of the newest ones that stay.
            note: Plain values for ``resume`` to give back.

        Raises:
            CheckpointError: It cannot be written, or a tick is under way; those before are as
                they were.
            OptionError: The trainer is not resumable.
            HocketError: No batch has been seen yet, or another thread runs a ``fit``.
        """
        self._require_allowed("save", trains=False, in_callbacks=True)
        checkpoints = Checkpoints(Path(folder), keep=keep, on_error="stop", note=lambda: note)
        with saving(checkpoints, self._session, self._fit_state) as save:
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
            HocketError: It has trained already, a ``fit`` is under way, or gradients are off.

        >>> import tempfile
        >>> sgd = lambda weights: torch.optim.SGD(weights, lr=0.1)
        >>> make = lambda: Trainer(nn.Linear(8, 2), stages=1, optimizer=sgd, resumable=True)
        >>> before, after = make(), make()
        >>> loss = before.step(torch.ones(4, 8), torch.tensor([0, 1, 0, 1]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     before.save(folder, note="one batch")
        ...     at = after.resume(folder)
        >>> at.epoch, at.batch, at.note
        (0, 1, 'one batch')
        """
        self._require_allowed("resume")
        session = self._session
        with session.reporting_failures(), session.world.in_phase(Phase.RESUMING):
            self._fit_state, point = resume_from(session, Path(folder))
            session.half_loaded = False
        return point

    def evaluate(self, batches: Iterable[Any]) -> EvaluationResult:
        """Measure the network as it is now on other data; its training is not disturbed.

        Among several processes all must call it, and all get the same result.

        Args:
            batches: Batches of the forms that ``fit`` takes.

        Raises:
            DataError: There are no batches.
            HocketError: Another thread runs a ``fit``.

        >>> trainer = Trainer(nn.Linear(8, 2), stages=1, optimizer=torch.optim.SGD)
        >>> result = trainer.evaluate([(torch.ones(4, 8), torch.tensor([0, 1, 0, 1]))])
        >>> result.error
        0.5
        """
        self._require_allowed("evaluate", trains=False, in_callbacks=True)
        with preserve_loader(batches, in_use=batches is self._fit_state.train):
            return measure(self._session, batches).result()

    def predict(self, batches: Iterable[Any]) -> list[Any]:
        """Return the outputs of the network as it is now; its training is not disturbed.

        Among several processes all must call it, and all get all outputs.

        Args:
            batches: Batches of the forms that ``fit`` takes, whose targets are not used, or
                inputs alone: tensors, or mappings without ``labels``. A network of several
                stages takes inputs of the form that it was cut with.

        Returns:
            The output for each batch, in order, as the network returns it, with tensors
            (B, ...) on the CPU. Among several processes any mapping becomes a dict.

        Raises:
            DataError: A batch has no tensors as inputs.
            HocketError: Another thread runs a ``fit``.

        >>> trainer = Trainer(nn.Linear(8, 2), stages=1, optimizer=torch.optim.SGD)
        >>> outputs = trainer.predict([torch.ones(4, 8), torch.ones(3, 8)])
        >>> [tuple(output.shape) for output in outputs]
        [(4, 2), (3, 2)]
        """
        self._require_allowed("predict", trains=False, in_callbacks=True)
        with preserve_loader(batches, in_use=batches is self._fit_state.train):
            return predict(self._session, batches)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, in the order of stages; plain JSON values."""
        return self._session.world.gather(value, "gathering values of the caller")

    def timeline(self) -> Timeline:
        """Return the time spans of all stages so far, on the clock of the first process.

        Among several processes all must call it. Only of use with ``record_timeline``.
        """
        session, world = self._session, self._session.world
        offset_s = world.clock_offset()
        spans = [
            (s.stage, s.kind, s.batch, s.tick, s.start_s + offset_s, s.end_s + offset_s)
            for stage in session.engine.stages
            for s in stage.recorder.spans
        ]
        rows = world.gather(spans)[:: world.replicas]
        return Timeline(tuple(Span(*row) for spans in rows for row in spans))

    def collect(self) -> None:
        """Bring the weights and statistics of all stages into ``network``, in every process.

        ``fit`` ends with it. All processes must call it; later replicas keep their stage's own.
        """
        self._session.cut.collect(self._session.world)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse copies and pickles: the graphs of batches in flight would stay with this one.

        Raises:
            HocketError: Always.
        """
        raise HocketError(
            "a trainer cannot be copied or pickled, as it has batches in flight; save a "
            "checkpoint and resume a new trainer, or keep its state_dict()"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the weights and statistics of all stages, under the names of the network.

        It shares its tensors with the network: clone or save them before later steps.
        Among several processes all must call it, and all get all of it.

        >>> trainer = Trainer([nn.Linear(8, 8), nn.Linear(8, 2)], optimizer=torch.optim.SGD)
        >>> list(trainer.state_dict())
        ['0.weight', '0.bias', '1.weight', '1.bias']
        """
        return self._session.cut.state_dict(self._session.world)

    def _require_allowed(
        self, call: str, *, trains: bool = True, in_callbacks: bool = False
    ) -> None:
        """Refuse a call within a ``fit``, and one that trains where there are no gradients.

        Raises:
            HocketError: A ``fit`` is under way, or the caller has switched gradients off.
        """
        state = self._fit_state
        if state.train is not None and not (in_callbacks and state.thread == get_ident()):
            thread = " in another thread" * in_callbacks
            advice = "in a callback" if in_callbacks else "write the loop yourself with step"
            raise HocketError(
                f"{call} was called{thread} while a fit is under way; call it before or after "
                f"the fit, or {advice}"
            )
        if trains and (torch.is_inference_mode_enabled() or not torch.is_grad_enabled()):
            raise HocketError(
                f"{call} was called inside torch.no_grad or torch.inference_mode, where there "
                "are no gradients; call it outside of them"
            )

    def _warn_of_autocast(self) -> None:
        setup = self._session.setup
        if setup.precision == "fp32" and torch.is_autocast_enabled(setup.device.type):
            self._warn_once(
                "the trainer is called inside torch.autocast, which has no effect on it; give "
                "it precision='bf16' or 'fp16' to train with autocast"
            )

    def _warn_once(self, message: str) -> None:
        """Warn the caller of the method that calls this; do nothing if it was warned before."""
        if message not in self._warned_of:
            self._warned_of.add(message)
            warn(message)


def _device_here(network: nn.Module, device: torch.device | str | None) -> torch.device:
    """Return the device of this process: the one that the user gave, or the network's.

    Raises:
        OptionError: There is no such device, PyTorch finds no GPU, or the network was built in
            inference mode.
        WorldError: The environment gives it no number.
    """
    name = "LOCAL_RANK" if "LOCAL_RANK" in os.environ else "RANK"
    wanted = parse_device(find_device(network) if device is None else device)
    if device is None and name in os.environ:
        wanted = torch.device(wanted.type)  # all of them may have put theirs on the first GPU
    if any(p.is_inference() for p in network.parameters() if not is_lazy(p)):
        raise OptionError("the network was built in inference_mode; build it outside of it")
    return assign_device(wanted, environment_number(name, 0), torch.cuda.device_count())


def _network_and_stages(
    network: nn.Module | Sequence[nn.Module], stages: Stages | None
) -> tuple[nn.Module, Stages]:
    """Return the network and its stages; two of them if nothing is said.

    Raises:
        OptionError: The stages are given twice, or there is no network.
    """
    if isinstance(network, nn.Module):
        return network, 2 if stages is None else stages
    one = isinstance(network, str | type) or not isinstance(network, Iterable)
    modules = [] if one else list(network)
    if one or not all(isinstance(module, nn.Module) for module in modules):
        raise OptionError(f"the network is {network!r}; give a module, or a list of modules")
    if stages is not None:
        raise OptionError("the network is a list of stages; leave the option stages out")
    chain = nn.Sequential(*modules)
    chain.training = any(module.training for module in modules)
    return chain, modules


def _show_options() -> None:
    """Let ``help(Trainer)`` and interactive shells show all options, each with its one text."""
    shown = inspect.signature(Trainer)
    main = [p for p in shown.parameters.values() if p.kind is not p.VAR_KEYWORD]
    more = [
        main[-1].replace(name=field.name, default=field.default, annotation=field.type)
        for field in fields(TrainingOptions)
    ]
    Trainer.__signature__ = shown.replace(parameters=[*main, *more])  # type: ignore[attr-defined]
    with suppress(OSError):  # no texts where the source is not installed
        start, raises, end = (Trainer.__doc__ or "").partition("    Raises:\n")
        described = describe_options(TrainingOptions, FIRST_OF_GROUP)
        Trainer.__doc__ = f"{start}{described}\n{raises}{end}"


_show_options()

"""What a user holds: a network in stages that trains on whatever batches it is given."""

import itertools
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import zip_longest
from math import ceil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hocket.checkpoint import Checkpoints, Manifest, Saver
from hocket.checkpoint.folder import name_of
from hocket.codec import Codec, Exact
from hocket.course import Course
from hocket.cut import (
    Plan,
    between_layers,
    chain,
    divide,
    is_chain,
    require_separate,
    stages_of,
)
from hocket.engine.assemble import BatchNorm, Precision, Setup, warn_of_bias
from hocket.engine.build import build_distributed, build_serial
from hocket.engine.build_free import build_alone, build_free
from hocket.engine.clock import Pace, Turns, equal
from hocket.engine.compare import Compare, Listener
from hocket.engine.distributed import Distributed
from hocket.engine.engine import Engine
from hocket.engine.serial import Serial
from hocket.engine.trace import Event, Watcher
from hocket.errors import CutError, DataError, HocketError, OptionError
from hocket.history import Epoch, Marks, Score, Tally
from hocket.interrupt import Interrupt
from hocket.losses import cross_entropy
from hocket.method import Loss, Method
from hocket.methods import FDG
from hocket.modes import evaluating
from hocket.progress import Progress, progress_bar
from hocket.signals import Delayed
from hocket.snapshot import (
    Position,
    agreed,
    described,
    manifest_of,
    names_of,
    open_at,
    part_name,
    require_alike,
    require_fitting,
    transfer,
    warn_of_changes,
)
from hocket.stage.rewind import untouched
from hocket.stage.stage import Stage
from hocket.timeline import Span, Timeline
from hocket.tree import Tree, map_tensors, tensors
from hocket.update.scale_free import warn_if_it_cancels
from hocket.update.step import OptimizerFactory, Per, SchedulerFactory
from hocket.world import World, join, placed


class Trainer:
    """Trains a network that is cut into stages, all of them at work in every tick.

    Args:
        network: The network (see :func:`hocket.cut`), or the stages as a list of modules.
        stages: How many stages to balance (2 if not given), a Plan, or the stages as a list of
            modules that together hold the network's parameters.
        method: The method; FDG if not given.
        optimizer: Builds an optimizer from the parameters of one stage.
        scheduler: Builds a scheduler from a stage's optimizer.
        scheduler_per: Whether the scheduler counts ``epoch`` or ``update``.
        loss: The objective of the last stage, and of auxiliary heads.
        seed: Where randomness of stages and initial weights of heads come from.
        device: Where to compute; by default where the network's parameters are.
        precision: ``fp32``, or ``bf16`` for autocast.
        channels_last: Whether 4-dimensional tensors are kept in that memory format.
        watchers: Called after every action with its event and its stage.
        compare_every: Compare the gradients of every n-th batch with the true ones.
        on_comparison: Called with each comparison.
        replicas: Where processes train together: how many share the work of a stage.
        timeout_s: How long a process may let another one wait before that is a hang.
        checksum: Whether tensors that go to another process leave with a checksum.
        trace: Whether to keep the span of every action, for ``timeline``.
        resumable: Whether to keep what a checkpoint needs of batches in flight: with ``stash``
            and ``live`` the weights and statistics of each of their forwards.
        batchnorm: Over which inputs BatchNorm takes its statistics where replicas share a
            batch: ``local`` for those of each, ``shared`` for all of them.
        codec: How what stages send to each other is written, such as ``VQ(groups=16)``; exactly
            if not given.
        rates: How fast each stage is, for a method whose stages run freely; equally if not
            given.
        turns: Whether such stages take their turns at ``regular`` intervals, or at ``random``.

    Where torch.distributed has a world of several processes (``hocket run``, ``torchrun``),
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
        scheduler_per: Per = "epoch",
        loss: Loss = cross_entropy,
        seed: int = 0,
        device: torch.device | str | None = None,
        precision: Precision = "fp32",
        channels_last: bool = False,
        watchers: Sequence[Watcher] = (),
        compare_every: int = 0,
        on_comparison: Listener | None = None,
        replicas: int = 1,
        timeout_s: float = 60.0,
        checksum: bool = True,
        trace: bool = False,
        codec: Codec | None = None,
        resumable: bool = False,
        batchnorm: BatchNorm = "local",
        rates: Sequence[float] | None = None,
        turns: Turns = "regular",
    ) -> None:
        method = method or FDG()
        self._compare = _compare(method, compare_every, loss, on_comparison)
        if not isinstance(network, nn.Module):
            if stages is not None:
                raise OptionError(
                    "the network is a list of stages; leave the option stages out"
                )
            stages = list(network)
            network = nn.Sequential(*stages)
        stages = 2 if stages is None else stages
        self.network = network
        self.plan: Plan | None = None
        self.epoch = 0
        place = int(os.environ.get("LOCAL_RANK", "0"))
        asked = torch.device(device) if device is not None else _home(network)
        self._device = placed(asked, place, torch.cuda.device_count())
        self._channels_last = channels_last
        if channels_last:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._asked = stages
        self._modules = self._cut(stages)
        self.count = _count(stages)
        if resumable and method.replay is not None:
            raise OptionError(
                f"the stages of method {method.name!r} run freely, and leave no checkpoints; "
                "leave resumable (checkpoint_every) out"
            )
        self._setup = Setup(
            method=method,
            loss=loss,
            optimizer=optimizer,
            scheduler=scheduler,
            scheduler_per=scheduler_per,
            seed=seed,
            device=self._device,
            precision=precision,
            trace=trace,
            codec=codec or Exact(),
            checksum=checksum,
            resumable=resumable,
            batchnorm=batchnorm,
            pace=_pace(method, self.count, rates, turns, seed),
        )
        self._watchers = list(watchers)
        self._engine: Engine | None = None
        self._aim: tuple[int, int | None] | None = None
        self._course = Course()
        self._resumed = False  # whether the course is one that the next fit goes on with
        self._sample: Tree = None
        self._world = join(self.count, replicas, timeout_s)
        _require_world(self._world, self.count, replicas, compare_every)
        if self._world is None:
            network.to(self._device)  # else each process has room for its own stage only

    @property
    def leads(self) -> bool:
        """Whether this is the process that should print and write files."""
        return self._world is None or self._world.leads

    @property
    def part(self) -> str | None:
        """What this process is called among several, such as stage1; None where it is alone."""
        if self._world is None:
            return None
        replica = f"-replica{self._world.replica}" if self._world.replicas > 1 else ""
        return f"stage{self._world.stage}{replica}"

    @property
    def stages(self) -> Sequence[Stage]:
        """The stages at work in this process.

        Raises:
            HocketError: No batch has been seen yet, so that nothing has been built.
        """
        if self._engine is None:
            raise HocketError("the stages are built at the first batch; call prepare or step")
        return self._engine.stages

    def prepare(self, inputs: Tree) -> None:
        """Cut the network and build its stages for inputs like these; later calls do nothing.

        Raises:
            CutError: The network cannot be cut so.
            OptionError: A stage cannot honour the method.
        """
        if self._engine is None:
            with self._reporting(), untouched(self._device):
                self._engine = self._build(inputs)

    def step(self, inputs: Tree, targets: Tree) -> float | None:
        """One tick, at which a batch enters; gives the loss of the batch that reached the end.

        With delays that is an earlier batch, and None until the first one has arrived. Among
        several processes the batch is that of the first stage, and the last one has the loss.

        Raises:
            NonFiniteError: A loss or gradient is NaN or infinite.
        """
        self.prepare(inputs)
        with self._reporting():
            events = self._tick(inputs, targets)
        last = self.count - 1
        losses = [
            event.report.loss
            for event in events
            if event.action.kind == "B" and event.action.stage == last
        ]
        return losses[0] if losses else None

    def end_epoch(self) -> list[Event]:
        """Count an epoch: schedulers follow, and a method that drains completes its batches."""
        self.epoch += 1
        self._course.batches = 0
        drains = self._setup.method.epoch_end == "drain"
        return self._engine.finish() if drains and self._engine is not None else []

    def finish(self) -> list[Event]:
        """Complete every batch in flight and apply every gradient."""
        return self._engine.finish() if self._engine is not None else []

    def fit(
        self,
        train: Iterable[tuple[Tree, Tree]],
        validation: Iterable[tuple[Tree, Tree]] | None = None,
        *,
        epochs: int,
        on_epoch: Callable[[Epoch], None] | None = None,
        progress: bool = True,
        checkpoints: Checkpoints | None = None,
    ) -> list[Epoch]:
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
            NonFiniteError: A loss or gradient is NaN or infinite.
        """
        if epochs < 1:
            raise OptionError(f"epochs is {epochs}; use at least 1")
        length = len(train) if isinstance(train, Sized) else None
        if not self._resumed:
            self._course = Course()
        self._aim = epochs, length  # for the engine, once there is one
        self._resumed, course = False, self._course
        told = on_epoch or (lambda epoch: None)
        stops = (signal.SIGINT, signal.SIGTERM)[: 1 if checkpoints is None else 2]
        orderly = self._world is not None or checkpoints is not None
        pace, free = self._setup.pace, self._setup.method.replay is not None
        passes = epochs if pace is None else ceil(epochs * pace.rates[0] / min(pace.rates))
        with (
            self._reporting(),
            progress_bar(passes, length, shown=progress and self.leads) as bar,
            Interrupt(stops) if orderly else nullcontext() as interrupt,
            self._saving(checkpoints, train) as save,
        ):
            if free and self._world is not None:
                course.history = self._apart(train, validation, bar, interrupt, save)
                for epoch in course.history:
                    told(epoch)
            while len(course.history) < epochs or not (self._engine and self._engine.done):
                final = len(course.history) >= epochs - 1
                epoch = self._epoch(train, validation, bar, interrupt, save, final=final)
                course.end(epoch)
                bar.epoch(epoch.number, epoch.loss, epoch.score.error if epoch.score else None)
                told(epoch)
                save(None)
            self.collect()
        return course.history

    def save(self, folder: Path | str, *, keep: int = 3, note: Any = None) -> None:
        """Write a checkpoint of the training as it is between two ticks.

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
        with self._reporting():
            kind = Checkpoints(Path(folder), keep=keep, on_failure="stop", note=lambda: note)
            with self._saving(kind, None) as save:
                save(None)

    def resume(self, folder: Path | str) -> Position:
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
        with self._reporting():
            return self._resume(Path(folder))

    @torch.no_grad()
    def evaluate(self, batches: Iterable[tuple[Tree, Tree]]) -> Score:
        """The network as it is now on other data; training goes on as if nothing had been.

        Among several processes all must call it, and all get the same score.

        Raises:
            DataError: There are no batches.
        """
        marks = Marks(self.count)
        # Replicas differ in their statistics; the first one is the network that is saved.
        first = self._world is None or self._world.replica == 0
        with self._reporting(), untouched(self._device):
            started = self._started(batches)  # which may cut the network, in its own mode
        with (
            self._reporting(),
            untouched(self._device),
            evaluating(self.network, *self._modules),
        ):
            own = map(self._moved, started)
            for answer in self._engine.predict(own) if self._engine and first else ():
                marks.add(answer, self._setup.loss)
            whole = Marks(self.count)
            for values in self.gather(marks.values()):
                whole.merge(values)
        return whole.score()

    def gather(self, value: Any) -> list[Any]:
        """What every process gives here, in the order of stages; plain JSON values."""
        return [value] if self._world is None else self._world.gather(value)

    def timeline(self) -> Timeline:
        """What all stages spent their time on so far, on the clock of the first process.

        Among several processes all must call it. Only of use with ``trace``.
        """
        offset = 0.0 if self._world is None else self._world.clock()
        own = [
            (s.stage, s.kind, s.batch, s.tick, s.start_s + offset, s.end_s + offset)
            for stage in self.stages
            for s in stage.recorder.spans
        ]
        replicas = 1 if self._world is None else self._world.replicas
        rows = self.gather(own)[::replicas]
        return Timeline(tuple(Span(*row) for spans in rows for row in spans))

    @property
    def sent_bytes(self) -> int:
        """What this process has sent to others so far."""
        return self._engine.sent_bytes if self._engine is not None else 0

    def collect(self) -> None:
        """Bring the weights and statistics of all stages into ``network``, in every process.

        ``fit`` ends with it. Among several processes all must call it.
        """
        if self._world is not None:
            self._world.collect(self._modules)

    def state_dict(self) -> dict[str, Any]:
        """The weights and statistics of all stages, under the names of the network.

        Among several processes all must call it, and all get all of it.
        """
        self.collect()
        state: dict[str, Any] = self.network.state_dict()
        return state

    @contextmanager
    def _saving(
        self, checkpoints: Checkpoints | None, train: object
    ) -> Iterator[Callable[[int | None], None]]:
        """Inside, what is given writes a checkpoint: at once, or if one is due at a tick."""
        if checkpoints is None:
            yield lambda ticks: None
            return
        if not self._setup.resumable:
            raise OptionError(
                "checkpoints need what was in flight; build the trainer with resumable=True"
            )
        saver = Saver(checkpoints, self._world)

        def save(ticks: int | None) -> None:
            if ticks is None or saver.due(ticks):
                self._write(saver, train, checkpoints.note() if checkpoints.note else None)

        try:
            yield save
        except BaseException as error:
            # Where another process has failed nobody waits for its part.
            if self._world is None or isinstance(error, KeyboardInterrupt):
                saver.wait()
            raise
        saver.wait()
        self.gather(None)  # it is sealed for all

    def _write(self, saver: Saver, train: object, note: Any) -> None:
        if self._engine is None:
            raise HocketError("there is nothing to save before the first batch")
        assert isinstance(self._engine, Serial | Distributed), "others are not resumable"
        if (name := name_of(self._engine.now, self.epoch)) == saver.last:
            return
        course, replica = self._course, self._world.replica if self._world else 0
        parts = {
            part_name(stage.index, replica): state
            | described(stage, self.network)
            | {"course": course.state(stage.index, train), "note": note, "sample": self._sample}
            for stage, state in zip(self._engine.stages, self._engine.state(), strict=True)
        }
        summary = course.summary() | {"epoch": self.epoch}
        manifest = manifest_of(
            self._engine.now, self._setup, self._layers(), self._replicas, summary
        )
        saver.save(name, parts, manifest)

    def _resume(self, folder: Path) -> Position:
        if self._engine is not None and self._engine.now:
            raise HocketError("this trainer has trained already; resume with a new one")
        replica = self._world.replica if self._world else 0
        places = range(self.count) if self._world is None else [self._world.stage]
        own = [part_name(stage, replica) for stage in places]

        def wanted(manifest: Manifest) -> Iterable[str]:
            alike = (len(manifest.stages), manifest.replicas) == (self.count, self._replicas)
            return own if alike else sorted(manifest.parts)

        found, newer = agreed(folder, wanted, self.gather)
        manifest, first = found.manifest, next(iter(found.parts.values()))
        require_alike(manifest, self._setup)
        self.prepare(first["sample"])
        assert isinstance(self._engine, Serial | Distributed)
        exact = manifest.stages == self._layers() and manifest.replicas == self._replicas
        if exact:
            states = [found.parts[name] for name in own]
            require_fitting(self._engine.stages, states)
            self._engine.load(states)
        else:
            states = []
            found = open_at(found.folder, lambda manifest: sorted(manifest.parts))
            transfer(self._engine, self.network, found, manifest.course["epoch"])
        if self.leads:
            warn_of_changes(found, exact, newer)
        self.epoch = manifest.course["epoch"]
        tallies = [state["course"]["tally"] for state in states]
        self._course = Course()
        self._course.load(manifest.course, first["course"]["chance"], tallies)
        self._resumed = True
        note = first["note"] if exact or self.leads else None
        return Position(self.epoch, self._course.batches, note, tuple(self._course.history))

    @property
    def _replicas(self) -> int:
        return self._world.replicas if self._world is not None else 1

    def _layers(self) -> list[list[str]]:
        """The network's names for what each stage holds."""
        return [
            sorted(names_of(self.network, module, k).values())
            for k, module in enumerate(self._modules)
        ]

    def _epoch(
        self,
        train: Iterable[tuple[Tree, Tree]],
        validation: Iterable[tuple[Tree, Tree]] | None,
        bar: Progress,
        interrupt: Interrupt | None,
        save: Callable[[int | None], None],
        *,
        final: bool,
    ) -> Epoch:
        number, course = self.epoch, self._course
        self._pass(train, bar, interrupt, save)
        self._heed(interrupt, save)
        course.tally.add(self.end_epoch())
        if final and self._engine is not None and self._engine.done:
            course.tally.add(self.finish())
        rows = self.gather([course.tally.values(), course.samples, course.seconds])
        score = self.evaluate(validation) if validation is not None else None
        return self._merged(rows, number, score)

    def _apart(
        self,
        train: Iterable[tuple[Tree, Tree]],
        validation: Iterable[tuple[Tree, Tree]] | None,
        bar: Progress,
        interrupt: Interrupt | None,
        save: Callable[[int | None], None],
    ) -> list[Epoch]:
        """Train without meeting the other processes until every stage has learned enough.

        What is known of single stages comes together at the end, where all evaluate.
        """
        if self._aim is None or self._aim[1] is None:
            raise OptionError(
                "each stage counts its own epochs, and the training data do not say how many "
                "batches they have; pass a list or a DataLoader"
            )
        first, own = self.epoch, list[Any]()
        while not (own and self._engine is not None and self._engine.done):
            self._course = course = Course()
            self._pass(train, bar, interrupt, save)
            losses = course.tally.losses(None)
            if interrupt is not None and interrupt.asked and self._engine is not None:
                self._engine.stop()
                break
            if losses or not own:
                bar.epoch(self.epoch, sum(losses) / max(len(losses), 1), None)
                own.append([course.tally.values(), course.samples, course.seconds])
                self.end_epoch()
            else:  # it only passed on what others still learn from
                own[-1][2] += course.seconds
        self.finish()
        self._heed(interrupt, save)
        epochs = []
        for number, rows in enumerate(zip_longest(*self.gather(own)), first):
            there = [row for row in rows if row is not None]
            epochs.append(self._merged(there, number, None))
        if validation is None:
            return epochs
        return [*epochs[:-1], replace(epochs[-1], score=self.evaluate(validation))]

    def _merged(self, rows: Sequence[Any], number: int, score: Score | None) -> Epoch:
        """An epoch of what the processes have counted."""
        whole, own = Tally(), self._setup.method.replay is not None
        for values, _, _ in rows:
            whole.merge(values)
        samples, seconds = max(row[1] for row in rows), max(row[2] for row in rows)
        return whole.epoch(number, self.count, score, seconds, samples, own=own)

    def _heed(self, interrupt: Interrupt | None, save: Callable[[int | None], None]) -> None:
        """Stop where a process was asked to."""
        if asked := max(self.gather(interrupt.asked if interrupt is not None else 0)):
            save(None)
            raise KeyboardInterrupt(asked)

    def _pass(
        self,
        train: Iterable[tuple[Tree, Tree]],
        bar: Progress,
        interrupt: Interrupt | None,
        save: Callable[[int | None], None],
    ) -> None:
        """Go through what is left of an epoch's data; what came of it is in the course."""
        number, course, free = self.epoch, self._course, self._setup.method.replay is not None
        batches = self._started(course.begin(train))
        if interrupt is not None and self._reads:
            shared = self._world.agreement() if self._world is not None else None
            batches = interrupt.until_asked(batches, shared)
        if self._engine is not None and self._aim is not None:
            self._engine.aim(*self._aim)
            self._aim = None
        for inputs, targets in self._engine.feed(batches) if self._engine else ():
            course.add(self._tick(inputs, targets), _samples(inputs))
            bar.batch(course.tally.losses(None if free else number)[-1:])
            save(self._engine.now if self._engine else None)
        samples = course.samples
        if samples == 0 and self._reads and not (interrupt and interrupt.asked):
            raise DataError(
                f"epoch {number}: the training data have no batches; an iterator can be used "
                "once, so pass a list or a DataLoader"
            )

    @property
    def _reads(self) -> bool:
        """Whether this process reads the data."""
        return self._world is None or self._world.stage == 0

    def _started(self, batches: Iterable[tuple[Tree, Tree]]) -> Iterator[tuple[Tree, Tree]]:
        """The batches, once the engine is built for the first of them."""
        own = iter(batches) if self._reads else iter(())
        if self._engine is not None:
            return own
        first = list(itertools.islice(own, 1))
        if first or not self._reads:
            self.prepare(first[0][0] if first else None)
        return itertools.chain(first, own)

    def _tick(self, inputs: Tree, targets: Tree) -> list[Event]:
        assert self._engine is not None
        self._course.batches += 1
        own_inputs, own_targets = self._moved((inputs, targets)) if self._reads else (None,) * 2
        return self._engine.step(own_inputs, own_targets, self.epoch)

    def _build(self, inputs: Tree) -> Engine:
        count = _samples(inputs)

        def first(value: Tensor) -> Tensor:
            return value[:2] if value.dim() and len(value) == count else value

        self._sample = sample = map_tensors(first, inputs)
        if self._world is not None:
            sample = self._world.broadcast(sample)
        sample = self._moved(sample, _home(self.network))
        if isinstance(self._asked, int | Plan) and not self._modules:
            self.plan, self._modules = divide(self.network, self._asked, sample)
        setup, modules, watchers = self._setup, self._modules, self._watchers
        engine: Engine
        if self._setup.method.replay is not None and self._world is not None:
            engine = build_alone(setup, modules, sample, watchers, self._world)
        elif self._setup.method.replay is not None:
            engine = build_free(setup, modules, sample, watchers)
        elif self._world is None:
            engine = build_serial(setup, modules, sample, watchers, self._compare)
        else:
            engine = build_distributed(setup, modules, sample, watchers, self._world)
        if self.leads:
            warn_of_bias(setup, stacklevel=5)
        signal = self._setup.method.signal
        if isinstance(signal, Delayed) and self.leads:
            shrunk = [s.updater.optimizer for s in engine.stages if s.index < self.count - 1]
            warn_if_it_cancels(signal.shrink, shrunk, stacklevel=4)
        return engine

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Inside, whatever goes wrong is told to the other processes."""
        try:
            yield
        except (Exception, SystemExit) as error:
            if self._world is not None:
                self._world.alarm.report(error)
            raise

    def _moved(self, values: Tree, device: torch.device | None = None) -> Tree:
        """Values on a device (of the stages, if none is given), in the network's format."""
        device = device or self._device

        def move(value: Tensor) -> Tensor:
            if self._channels_last and value.dim() == 4:
                return value.to(device, memory_format=torch.channels_last)
            return value.to(device)

        return map_tensors(move, values)

    def _cut(self, stages: int | Plan | Sequence[nn.Module]) -> list[nn.Module]:
        """The stages' modules, as far as they are known without a sample."""
        if isinstance(stages, int):
            layers = list(chain(self.network)) if is_chain(self.network) else []
            if stages < 1 or (layers and stages > len(layers)):
                many = f"it has {len(layers)} layers; " if layers else ""
                most = f"1 to {len(layers)} stages" if layers else "at least 1 stage"
                raise CutError(
                    f"cannot cut this network into {stages} stages: {many}ask for {most}"
                )
            return []
        if isinstance(stages, Plan):
            self.plan = stages
            if not between_layers(self.network, stages):
                return []  # a sample is needed
            return stages_of(self.network, stages)
        require_separate(self.network, stages)
        return list(stages)


def _require_world(world: World | None, count: int, replicas: int, compare_every: int) -> None:
    """Refuse what needs several processes in one, or one in several."""
    if world is None and replicas != 1:
        raise OptionError(
            f"replicas is {replicas}, but there is only this process; start "
            f"{replicas * count}, with `hocket run --processes` or torchrun"
        )
    if world is not None and compare_every:
        raise OptionError(
            "compare_every needs all stages in one process, and there are "
            f"{world.size}; train in one process, or leave compare_every at 0"
        )


def _compare(
    method: Method, every: int, loss: Loss, listener: Listener | None
) -> Compare | None:
    """What compares gradients, if that is asked for."""
    if every < 0 or bool(every) != bool(listener):
        raise OptionError("compare_every and on_comparison belong together; give both")
    if every and method.replay is not None:
        raise OptionError(
            f"compare_every compares gradients tick by tick, but the stages of method "
            f"{method.name!r} run freely; leave it at 0"
        )
    return Compare(every, loss, listener) if listener is not None else None


def _pace(
    method: Method, count: int, rates: Sequence[float] | None, turns: Turns, seed: int
) -> Pace | None:
    """How fast each stage is, where they run freely."""
    if method.replay is None:
        if rates is not None or turns != "regular":
            raise OptionError(
                f"rates and turns are for stages that run freely, but those of method "
                f"{method.name!r} keep step; leave them out, or use a method with a buffer"
            )
        return None
    if rates is not None and len(rates) != count:
        raise OptionError(f"there are {len(rates)} rates for {count} stages; give one for each")
    return Pace(equal(count).rates if rates is None else tuple(rates), turns, seed)


def _home(network: nn.Module) -> torch.device:
    """Where the network's parameters are."""
    return next((p.device for p in network.parameters()), torch.device("cpu"))


def _count(stages: int | Plan | Sequence[nn.Module]) -> int:
    """How many stages are asked for."""
    if isinstance(stages, int):
        return stages
    return stages.stages if isinstance(stages, Plan) else len(stages)


def _samples(inputs: Tree) -> int:
    """How many inputs a batch has; 0 for a placeholder."""
    found = tensors(inputs)
    return len(found[0]) if found else 0

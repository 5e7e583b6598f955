"""What a user holds: a network in stages that trains on whatever batches it is given."""

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from hocket.codec import Codec, Exact
from hocket.cut import (
    Plan,
    between_layers,
    chain,
    divide,
    is_chain,
    require_separate,
    stages_of,
)
from hocket.engine.build import (
    BatchNorm,
    Precision,
    Setup,
    build_distributed,
    build_serial,
    warn_of_bias,
)
from hocket.engine.compare import Compare, Listener
from hocket.engine.engine import Engine
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
from hocket.stage.rewind import untouched
from hocket.stage.stage import Stage
from hocket.timeline import Span, Timeline
from hocket.tree import Tree, map_tensors, tensors
from hocket.update.scale_free import warn_if_it_cancels
from hocket.update.step import OptimizerFactory, Per, SchedulerFactory
from hocket.world import join, placed


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
        trace: Whether to keep the span of every action, for ``timeline``.
        batchnorm: Over which inputs BatchNorm takes its statistics where replicas share a
            batch: ``local`` for those of each, ``shared`` for all of them.
        codec: How what stages send to each other is written, such as ``VQ(groups=16)``; exactly
            if not given.

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
        trace: bool = False,
        codec: Codec | None = None,
        batchnorm: BatchNorm = "local",
    ) -> None:
        if compare_every < 0 or bool(compare_every) != bool(on_comparison):
            raise OptionError("compare_every and on_comparison belong together; give both")
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
        self._setup = Setup(
            method=method or FDG(),
            loss=loss,
            optimizer=optimizer,
            scheduler=scheduler,
            scheduler_per=scheduler_per,
            seed=seed,
            device=self._device,
            precision=precision,
            trace=trace,
            codec=codec or Exact(),
            batchnorm=batchnorm,
        )
        self._watchers = list(watchers)
        self._compare = (
            Compare(compare_every, loss, on_comparison) if on_comparison is not None else None
        )
        self._engine: Engine | None = None
        self.count = _count(stages)
        self._world = join(self.count, replicas, timeout_s)
        if self._world is None:
            network.to(self._device)  # else each process has room for its own stage only
        if self._world is None and replicas != 1:
            raise OptionError(
                f"replicas is {replicas}, but there is only this process; start "
                f"{replicas * self.count}, with `hocket run --processes` or torchrun"
            )
        if self._world is not None and compare_every:
            raise OptionError(
                "compare_every needs all stages in one process, and there are "
                f"{self._world.size}; train in one process, or leave compare_every at 0"
            )

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
    ) -> list[Epoch]:
        """Train, and evaluate after every epoch.

        Args:
            train: Any iterable of (inputs, targets); gone through once for each epoch.
            validation: The same for evaluation.
            epochs: How many times.
            on_epoch: Called after each epoch with what it came to.
            progress: Whether to show a bar on a terminal, or a line per epoch elsewhere.

        Raises:
            OptionError: There is less than one epoch.
            DataError: The training data have no batches.
            NonFiniteError: A loss or gradient is NaN or infinite.
        """
        if epochs < 1:
            raise OptionError(f"epochs is {epochs}; use at least 1")
        history = []
        length = len(train) if isinstance(train, Sized) else None
        with (
            self._reporting(),
            progress_bar(epochs, length, shown=progress and self.leads) as bar,
            Interrupt() if self._world is not None else nullcontext() as interrupt,
        ):
            for left in reversed(range(epochs)):
                epoch = self._epoch(train, validation, bar, interrupt, final=left == 0)
                history.append(epoch)
                bar.epoch(epoch.number, epoch.loss, epoch.score.error if epoch.score else None)
                if on_epoch is not None:
                    on_epoch(epoch)
            self.collect()
        return history

    @torch.no_grad()
    def evaluate(self, batches: Iterable[tuple[Tree, Tree]]) -> Score:
        """The network as it is now on other data; training goes on as if nothing had been.

        Among several processes all must call it, and all get the same score.

        Raises:
            DataError: There are no batches.
        """
        marks = Marks()
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
            for output, targets in self._engine.predict(own) if self._engine and first else ():
                marks.add(output, targets, self._setup.loss)
            whole = Marks()
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

    def _epoch(
        self,
        train: Iterable[tuple[Tree, Tree]],
        validation: Iterable[tuple[Tree, Tree]] | None,
        bar: Progress,
        interrupt: Interrupt | None,
        *,
        final: bool,
    ) -> Epoch:
        number, samples, start = self.epoch, 0, time.perf_counter()
        tally = Tally()
        batches = self._started(train)
        if interrupt is not None and self._world is not None and self._reads:
            batches = interrupt.until_asked(batches, self._world.agreement())
        for inputs, targets in self._engine.feed(batches) if self._engine else ():
            tally.add(self._tick(inputs, targets))
            samples += _samples(inputs)
            bar.batch(tally.losses(number)[-1:])
        if samples == 0 and self._reads and not (interrupt and interrupt.asked):
            raise DataError(
                f"epoch {number}: the training data have no batches; an iterator can be used "
                "once, so pass a list or a DataLoader"
            )
        asked = interrupt is not None and interrupt.asked
        if any(self.gather(asked)):
            raise KeyboardInterrupt
        tally.add(self.end_epoch())
        if final:
            tally.add(self.finish())
        seconds = time.perf_counter() - start
        rows = self.gather([tally.values(), samples, seconds])
        whole = Tally()
        for values, _, _ in rows:
            whole.merge(values)
        samples, seconds = max(row[1] for row in rows), max(row[2] for row in rows)
        score = self.evaluate(validation) if validation is not None else None
        return whole.epoch(number, self.count, score, seconds, samples)

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
        own_inputs, own_targets = self._moved((inputs, targets)) if self._reads else (None,) * 2
        return self._engine.step(own_inputs, own_targets, self.epoch)

    def _build(self, inputs: Tree) -> Engine:
        count = _samples(inputs)

        def first(value: Tensor) -> Tensor:
            return value[:2] if value.dim() and len(value) == count else value

        sample = map_tensors(first, inputs)
        if self._world is not None:
            sample = self._world.broadcast(sample)
        sample = self._moved(sample, _home(self.network))
        if isinstance(self._asked, int | Plan) and not self._modules:
            self.plan, self._modules = divide(self.network, self._asked, sample)
        setup, modules, watchers = self._setup, self._modules, self._watchers
        engine: Engine
        if self._world is None:
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

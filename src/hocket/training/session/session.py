"""This process's share of a training: network, stages, engine and world."""

import itertools
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hocket.distributed.failures.phases import Phase
from hocket.distributed.replicas.sync_batchnorm import unshare_statistics
from hocket.distributed.world.joined_worlds import join_world
from hocket.distributed.world.solo_world import SoloWorld
from hocket.engine.build import build_engine
from hocket.engine.engine import Engine, UnbuiltEngine
from hocket.engine.engine_parts import EngineParts
from hocket.engine.event import Event, Watcher
from hocket.engine.gradient_error import GradientErrorMeter
from hocket.errors import HocketError, OptionError, warn
from hocket.modes import TrainingMode
from hocket.options.require import require_list
from hocket.partition.inputs import as_inputs
from hocket.restore import preserve_rng
from hocket.stage.layers.module_tensors import NetworkNames
from hocket.stage.setup import Setup
from hocket.stage.stage import Stage
from hocket.training.results.own_metrics import Metric, OwnMetrics
from hocket.training.session.agreement import require_same_stages, require_same_training
from hocket.training.session.batches import BatchSplitter, SplitBatch, Upload, read
from hocket.training.session.cut_network import CutNetwork, Stages, find_device
from hocket.training.session.no_effect import warn_of_no_effect
from hocket.training.session.ticks import Ticks
from hocket.tree import Tree, copy_tensors, count_samples, map_tensors, take_samples


def refuse_exit(end: SystemExit) -> HocketError:
    """Return the error of a training that an exit with code 0 has cut short."""
    place = traceback.extract_tb(end.__traceback__)[-1]
    return HocketError(
        f"an exit with code 0 within a training, at {place.filename}:{place.lineno}, would "
        "mean that all is done; end it early by Trainer.request_stop, or exit with another code"
    )


class Session:
    """This process's share of a training, which is opened at its first batch.

    Args:
        network: The network.
        stages: Number of stages, where they begin, or the stages themselves.
        setup: Options that all stages share.
        watchers: Called after every action.
        meter: Compares late gradients with the true ones; None to compare none.
        split_batch: Returns the inputs and targets of a batch of a loader; None for pairs and
            mappings with labels.
        metrics: Metrics of the user's own for evaluations, by name.

    Attributes:
        cut: The network and its stages.
        world: This process among the others, or alone.
        ticks: Feeds the engine, which has no stages before the first batch.
        splitter: Splits batches of loaders into inputs and targets.
        upload: Brings batches to the device.
        update_listeners: Called with the stage after each update of a stage's weights.
        training_mode: Training mode of the network.
        sample: Inputs that the network was cut with: a small part of the first batch, or all.
        checkpoint_folders: Folders that have checkpoints of this training.
        half_loaded: True while a checkpoint is loaded, and after an error that cut that short.
        closed: True once the session has left its world.

    Raises:
        CutError: The network cannot be cut like this.
        OptionError: An option needs several processes, or only one.
        WorldError: There are not as many processes as stages times replicas.
    """

    def __init__(
        self,
        network: nn.Module,
        stages: Stages,
        setup: Setup,
        watchers: Sequence[Watcher],
        meter: GradientErrorMeter | None,
        split_batch: SplitBatch | None,
        metrics: Mapping[str, Metric] | None,
    ) -> None:
        # Check and prepare what needs no other process.
        self.setup, self.metrics = setup, OwnMetrics(metrics or {})
        listeners: list[Callable[[Stage], None]] = []

        def tell_of_update(event: Event, stage: Stage) -> None:
            if event.action.kind == "U" and not event.report.skipped:
                for listener in listeners:
                    listener(stage)

        self.update_listeners = listeners
        self._watchers: list[Watcher] = [*require_list("watchers", watchers), tell_of_update]
        self._meter = meter
        self.cut = CutNetwork(network, stages)
        self.training_mode = TrainingMode(network)
        self.splitter = BatchSplitter(network, split_batch)
        self.upload = Upload(setup.device, channels_last=setup.channels_last)
        self.checkpoint_folders: set[Path] = set()
        self.closed, self.half_loaded, self.sample = False, False, None
        # Refuse plain data parallelism, which PyTorch has.
        exchanges_rarely = setup.meet or setup.replica_delay
        if setup.replicas > 1 and self.cut.count == 1 and not exchanges_rarely:
            raise OptionError(
                f"one stage with {setup.replicas} replicas is data parallelism; use "
                "torch.nn.parallel.DistributedDataParallel for that, or replica_delay or meet"
            )
        # Join the other processes, if there are any.
        self.world = world = join_world(
            self.cut.count, setup.replicas, setup.timeout_s, setup.slow_timeout_s
        )
        self._forgotten = weakref.finalize(self, world.close_in_background)
        self._forgotten.atexit = False  # then all worlds are closed in good order
        if isinstance(world, SoloWorld):
            network.to(setup.device)  # else each process has room for its own stage only
        elif meter is not None and world.size > 1:
            world.close_in_background()
            raise OptionError(
                "gradient_error_every needs all stages in one process, and there are "
                f"{world.size}; train in one process, or leave it at 0"
            )
        # The engine comes with the first batch.
        self.ticks = Ticks(setup, world, self.cut, self.upload)

    @property
    def prepared(self) -> bool:
        """True while the engine has stages."""
        return bool(self.engine.stages)

    @property
    def engine(self) -> Engine:
        """Engine that executes the program; it has no stages before the first batch."""
        return self.ticks.engine

    @property
    def detached(self) -> bool:
        """True if this process trains without waiting for the others, as stages run freely."""
        return self.world.size > 1 and self.setup.method.free_running

    @contextmanager
    def reporting_failures(self) -> Iterator[None]:
        """Context manager that reports any error to the other processes.

        Raises:
            HocketError: One process of several was to exit with code 0.
        """  # noqa: DOC501  # refuse_exit returns a HocketError
        try:
            yield
        except (Exception, SystemExit) as error:
            self.world.report_failure(error)
            if self.world.size > 1 and isinstance(error, SystemExit) and not error.code:
                raise refuse_exit(error) from None
            raise

    def prepare(self, inputs: Tree, *, whole: bool = False, resumes: bool = False) -> None:
        """Build the engine for inputs like these; later calls do nothing.

        Args:
            inputs: Inputs of a batch; not used in processes that read no data.
            whole: Cut the network with all of the inputs, not with a few samples of them.
            resumes: Let the weights of the processes differ, as a checkpoint replaces them.
        """
        if not self.prepared:
            with (
                self.reporting_failures(),
                self.world.in_phase(Phase.BUILDING),
                preserve_rng([self.setup.device]),
                self.setup.without_callers_autocast(),
                torch.inference_mode(False),  # whose tensors cannot be trained
            ):
                self.ticks.engine, self.sample = self._open(inputs, whole, resumes)

    def _open(self, inputs: Tree, whole: bool, resumes: bool) -> tuple[Engine, Tree]:
        """Cut the network; return the engine, and the inputs that it was cut with.

        These are two samples of the batch, or all of it if the network does not take two.
        """
        setup, world, cut = self.setup, self.world, self.cut
        # Agree with the other processes on what to train, before a forward decides sizes here,
        # and on a sample.
        require_same_training(world, setup, cut.network, resumes=resumes)
        device = find_device(cut.network)

        def to_cut(tree: Tree) -> Tree:
            return map_tensors(lambda value: value.to(device), self.upload(tree))

        sample = as_inputs(inputs, "the batch") if world.reads_data else inputs
        if world.reads_data and not whole:
            few = take_samples(sample, slice(2), count_samples(sample))
            few = copy_tensors(few)  # a view would keep the memory of the whole batch
            if cut.accepts(to_cut(few)):  # not if it is rows of graphs, which are no samples
                sample = few
        sample = world.broadcast(sample)
        moved = to_cut(sample)
        # Cut the network; the main process warns of an uneven cut.
        with warnings.catch_warnings():
            if not world.is_main:
                warnings.simplefilter("ignore")
            modules = cut.cut(moved)
        if setup.channels_last:  # now that lazy layers have their weights
            cut.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        # Agree on the stages.
        names = NetworkNames(cut.network)
        require_same_stages(world, setup, modules, names)
        # Build the engine, with warnings of what it does not train.
        if (known := names.parameters) and not any(weight.requires_grad for weight in known):
            warn(
                "all weights of the network are frozen, and stay as they are; unfreeze some "
                "with requires_grad_(True) before the first batch",
            )
        parts = EngineParts(setup, modules, moved, self._watchers, world, self._meter, names)
        engine = build_engine(parts)
        warn_of_no_effect(setup, cut, engine.stages, world)
        return engine, sample

    def prepared_by(
        self, batches: Iterable[Any], *, inputs_only: bool = False
    ) -> Iterator[tuple[Tree, Tree]]:
        """Return the inputs and targets of the batches; the first one builds the engine.

        Args:
            batches: The batches; not read in processes that read no data.
            inputs_only: Accept batches that are inputs without targets.
        """
        reads = self.world.reads_data
        split = self.splitter.inputs if inputs_only else self.splitter.pairs
        pairs = split(read(batches, self.world)) if reads else iter(())
        if self.prepared:
            return pairs
        first = list(itertools.islice(pairs, 1))
        if first or not reads:
            self.prepare(first[0][0] if first else None)
        return itertools.chain(first, pairs)

    def close(self, error: BaseException | None = None) -> None:
        """Leave the world and give the network back; later calls do nothing.

        Args:
            error: The error that ended the use of the session. Other processes hear of it, and
                this one does not wait for them. None if it ended in good order.
        """
        self._forgotten.detach()
        if self.closed:
            return
        # Leave the other processes.
        if error is None:
            self.world.close()
        else:
            self.world.report_failure(error)
            self.world.close_in_background()
        # Forget the stages, and undo what was done to the network.
        self.sample = None
        self.ticks.engine = UnbuiltEngine()
        self._watchers.clear()
        self._meter = None
        unshare_statistics(nn.ModuleList([self.cut.network, *self.cut.modules]), self.world)
        self.closed = True

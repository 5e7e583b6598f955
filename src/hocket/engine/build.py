"""From a method and the stages' modules to an engine that is ready for its first batch."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
from torch import nn

from hocket.codec import Codec, Exact
from hocket.engine.compare import Compare
from hocket.engine.distributed import Distributed
from hocket.engine.serial import Serial
from hocket.engine.trace import Watcher
from hocket.errors import OptionError
from hocket.method import Loss, Method, Signal
from hocket.modes import evaluating
from hocket.relay.carrier import Carriers
from hocket.relay.coded import Coded, Ledger
from hocket.relay.memory import Edge, End
from hocket.relay.p2p import Connection, Horizon, Lower, Upper
from hocket.relay.port import After, Before
from hocket.signals import Objective
from hocket.stage.honour import require_honoured
from hocket.stage.linearize import build_linearizer
from hocket.stage.rewind import randomness
from hocket.stage.stage import Stage
from hocket.timeline import Recorder
from hocket.tree import Tree, copied
from hocket.update.average import Average
from hocket.update.step import OptimizerFactory, Per, SchedulerFactory, Updater
from hocket.update.synchronized import synchronize
from hocket.world import World

Precision = Literal["fp32", "bf16"]
BatchNorm = Literal["local", "shared"]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What all stages of a training have in common.

    Attributes:
        method: The method.
        loss: The objective.
        optimizer: Builds the optimizer of a stage from its parameters.
        scheduler: Builds the scheduler of a stage from its optimizer.
        scheduler_per: Whether the scheduler counts epochs or updates.
        seed: Where initial weights of signals and all randomness of the stages come from.
        device: Where all stages compute.
        precision: ``fp32`` or ``bf16`` (autocast).
        trace: Whether to keep the span of every action.
        batchnorm: ``local``, or ``shared`` for statistics over the replicas of a stage.
        codec: How what crosses an edge is written.
        resumable: Whether to keep what a state needs of batches and packets in flight.

    Raises:
        OptionError: One of these is not what it may be.
    """

    method: Method
    loss: Loss
    optimizer: OptimizerFactory
    scheduler: SchedulerFactory | None
    scheduler_per: Per
    seed: int
    device: torch.device
    precision: Precision
    trace: bool
    codec: Codec
    resumable: bool
    batchnorm: BatchNorm

    def __post_init__(self) -> None:
        for name, value, known in (
            ("precision", self.precision, get_args(Precision)),
            ("batchnorm", self.batchnorm, get_args(BatchNorm)),
        ):
            if value not in known:
                raise OptionError(f"{name} is {value!r}; use {' or '.join(map(repr, known))}")

    @property
    def dtype(self) -> torch.dtype | None:
        """What autocast computes in; None where it is off."""
        return torch.bfloat16 if self.precision == "bf16" else None


def warn_of_bias(setup: Setup, stacklevel: int) -> None:
    """Warn where a gradient is computed at other values than those it is applied at."""
    if setup.codec.biases and setup.method.signal.waits:
        warnings.warn(
            f"the codec {setup.codec} sends other activations than method "
            f"{setup.method.name!r} back-propagates through: a stage applies the gradient at "
            "what the next one received as if it were that at its own output, so that all "
            "stages but the last learn from biased gradients; methods with local losses, such "
            "as dgl, do not",
            stacklevel=stacklevel,
        )


def build_serial(
    setup: Setup,
    modules: Sequence[nn.Module],
    sample: Tree,
    watchers: Sequence[Watcher],
    compare: Compare | None,
) -> Serial:
    """All stages in this process, wired up by mailboxes.

    Args:
        setup: What the stages have in common.
        modules: Their layers.
        sample: A small batch of inputs, on the device.
        watchers: Called after every action.
        compare: Compares late gradients with the true ones.

    Raises:
        OptionError: A stage cannot honour the method.
    """
    last = len(modules) - 1
    signals = _signals(setup.method, last + 1)
    networks = _signal_networks(setup, modules, signals, sample)
    edges = [
        Edge(f"stage {k - 1}" if k else "the source", f"stage {k}") for k in range(last + 1)
    ]
    afters: list[After] = [edge.upper() for edge in edges[1:]]
    stages = [
        _stage(
            setup,
            k,
            last + 1,
            module,
            signals[k],
            networks[k],
            edge.lower(),
            after,
            Recorder(k, keep=setup.trace),
        )
        for k, (module, edge, after) in enumerate(
            zip(modules, edges, [*afters, End()], strict=True)
        )
    ]
    return Serial(setup.method, stages, edges[0], watchers, compare)


def build_distributed(
    setup: Setup,
    modules: Sequence[nn.Module],
    sample: Tree,
    watchers: Sequence[Watcher],
    world: World,
) -> Distributed:
    """The stage of this process, connected to those before and after it.

    Args:
        setup: What the stages have in common.
        modules: The layers of all stages.
        sample: A small batch of inputs, where the layers are; the same in all processes.
        watchers: Called after every action of this stage.
        world: This process among the others.

    Raises:
        OptionError: The stage cannot honour the method.
    """
    k, count, method = world.stage, len(modules), setup.method
    signals = _signals(method, count)
    networks = _signal_networks(setup, modules, signals, sample)
    if setup.batchnorm == "shared" and world.replicas > 1:
        synchronize(nn.ModuleList([modules[k], networks[k]]), world)
    # What a neighbour can be ahead by, an opening, and what it may send of an evaluation.
    room = method.forward_delay + method.backward_delay + 4

    carriers = Carriers(world, setup.device)

    def connect(step: int) -> Connection:
        rank = world.neighbour(step)
        return Connection(world, rank, room, setup.device, carriers.to(rank))

    source, horizon = Edge("the source", "stage 0"), Horizon()
    recorder = Recorder(k, keep=setup.trace)
    before = connect(-1) if k > 0 else None
    after = connect(1) if k < count - 1 else None
    ahead = method.forward_delay if setup.resumable else 0
    back = method.backward_delay if setup.resumable else 0
    stage = _stage(
        setup,
        k,
        count,
        modules[k],
        signals[k],
        networks[k],
        Lower(before, horizon, recorder, back) if before is not None else source.lower(),
        Upper(after, horizon, recorder, ahead) if after is not None else End(),
        recorder,
        world,
        carriers,
    )
    world.align([stage.module, stage.signal_network])
    return Distributed(method, stage, world, source, before, after, horizon, watchers)


def _signals(method: Method, count: int) -> list[Signal]:
    return [method.signal] * (count - 1) + [Objective()]


def _stage(
    setup: Setup,
    index: int,
    count: int,
    module: nn.Module,
    signal: Signal,
    signal_network: nn.Module,
    before: Before,
    after: After,
    recorder: Recorder,
    world: World | None = None,
    carriers: Carriers | None = None,
) -> Stage:
    method = setup.method
    delay = method.delay(index, count)
    module.to(setup.device)
    signal_network.to(setup.device)
    require_honoured(module, method.linearize, delay, index, setup.precision)
    trained = [p for p in module.parameters() if p.requires_grad]
    helping = list(signal_network.parameters())
    rate = method.first_stage_rate if index == 0 and count > 1 else 1.0
    average = None
    seed = setup.seed
    if world is not None and carriers is not None and world.replicas > 1:
        average = partial(Average, world=world, group=carriers.sums)
        # Replicas have other samples, and want other numbers for their dropout.
        seed += world.replica << 32
    ledger = Ledger()
    if setup.codec != Exact():
        codec, gradients = setup.codec, setup.codec.gradients
        if index > 0:
            before = Coded(before, gradients, codec, seed)
        if index < count - 1:
            after = Coded(after, codec, gradients, seed + index, ledger)
    return Stage(
        index=index,
        module=module,
        signal=signal,
        signal_network=signal_network,
        loss=setup.loss,
        linearizer=build_linearizer(
            method.linearize, delay, method.statistics, keep=setup.resumable
        ),
        before=before,
        after=after,
        updater=Updater(
            trained if signal.learns else trained + helping,
            setup.optimizer,
            setup.scheduler,
            per=setup.scheduler_per,
            reduce=method.reduce,
            rate=rate,
            average=average,
        ),
        signal_updater=Updater(
            helping if signal.learns else [],
            setup.optimizer,
            setup.scheduler,
            per=setup.scheduler_per,
            average=average,
        ),
        seed=seed,
        device=setup.device,
        precision=setup.dtype,
        recorder=recorder,
        ledger=ledger,
    )


@torch.no_grad()
def _signal_networks(
    setup: Setup, modules: Sequence[nn.Module], signals: Sequence[Signal], sample: Tree
) -> list[nn.Module]:
    """The network of each signal, made for the shapes that the sample takes on its way."""
    shapes: list[tuple[int, ...]] = []
    dtypes: list[torch.dtype] = []
    value = sample
    with evaluating(*modules):
        for k, module in enumerate(modules):
            value = module(copied(value))
            real = isinstance(value, torch.Tensor) and value.is_floating_point()
            if k < len(modules) - 1 and not signals[k].waits and not real:
                raise OptionError(
                    f"method {setup.method.name!r}: the output of stage {k} is not one tensor "
                    "of floating point numbers, which its signal needs; cut elsewhere, or "
                    "choose a method that waits for gradients"
                )
            shapes.append(tuple(value.shape[1:]) if real else ())
            dtypes.append(value.dtype if real else torch.get_default_dtype())
    outputs = shapes[-1][-1] if shapes[-1] else 1
    networks = []
    for k, signal in enumerate(signals):
        with randomness(setup.seed, k, 0, "signal", setup.device):
            network = signal.network(shapes[k], outputs)
        networks.append(network.to(dtypes[k]))
    return networks

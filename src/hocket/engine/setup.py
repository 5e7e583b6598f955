"""What all engines are made of: stages with their signals, from a method and modules."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
from torch import nn

from hocket.distributed.gradient_sync import GradientSync
from hocket.distributed.world import World
from hocket.engine.async_clock import StageSpeeds
from hocket.errors import OptionError
from hocket.losses import Loss
from hocket.methods.method import Method
from hocket.modes import evaluation_mode
from hocket.signals import Objective
from hocket.signals.signal import Signal
from hocket.stage.compatibility import check_compatible
from hocket.stage.linearize import build_linearizer
from hocket.stage.nonfinite import OnNaN
from hocket.stage.optimizer import OptimizerFactory, SchedulerFactory, SchedulerUnit, Updater
from hocket.stage.rng import seeded_rng
from hocket.stage.stage import Stage
from hocket.timeline import Recorder
from hocket.transport.backends import Backends
from hocket.transport.codecs import Codec, Exact
from hocket.transport.encoded import EncodedPort, SendStats
from hocket.transport.port import ToNext, ToPrevious
from hocket.transport.replay_buffer import ReceiveStats
from hocket.tree import Tree, copy_tensors

ROOM = 4
"""Of a process's inbox beside activations: for an opening, and what comes of an evaluation."""

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
        scheduler_unit: Whether the scheduler counts epochs or updates.
        seed: Where initial weights of signals and all randomness of the stages come from.
        device: Where all stages compute.
        precision: ``fp32`` or ``bf16`` (autocast).
        record_timeline: Whether to keep the span of every action.
        batchnorm: ``local``, or ``shared`` for statistics over the replicas of a stage.
        codec: How what crosses an edge is written.
        checksum: Whether tensors that go to another process leave with a checksum.
        resumable: Whether to keep what a state needs of batches and packets in flight.
        stage_speeds: How fast each stage is, where each runs freely; equally fast if not given.
        on_nan: What becomes of a batch whose numbers are NaN or infinite.
        skip_batches: Batches that are skipped, whatever their numbers.

    Raises:
        OptionError: One of these is not what it may be.
    """

    method: Method
    loss: Loss
    optimizer: OptimizerFactory
    scheduler: SchedulerFactory | None
    scheduler_unit: SchedulerUnit
    seed: int
    device: torch.device
    precision: Precision
    record_timeline: bool
    codec: Codec
    checksum: bool
    resumable: bool
    batchnorm: BatchNorm
    stage_speeds: StageSpeeds | None
    on_nan: OnNaN
    skip_batches: frozenset[int]

    def __post_init__(self) -> None:
        for name, value, known in (
            ("precision", self.precision, get_args(Precision)),
            ("batchnorm", self.batchnorm, get_args(BatchNorm)),
            ("on_nan", self.on_nan, get_args(OnNaN)),
        ):
            if value not in known:
                raise OptionError(f"{name} is {value!r}; use {' or '.join(map(repr, known))}")

    @property
    def dtype(self) -> torch.dtype | None:
        """What autocast computes in; None where it is off."""
        return torch.bfloat16 if self.precision == "bf16" else None


def warn_of_bias(setup: Setup, stacklevel: int) -> None:
    """Warn where a gradient is computed at other values than those it is applied at."""
    if setup.codec.biases and setup.method.signal.needs_gradient:
        warnings.warn(
            f"the codec {setup.codec} sends other activations than method "
            f"{setup.method.name!r} back-propagates through: a stage applies the gradient at "
            "what the next one received as if it were that at its own output, so that all "
            "stages but the last learn from biased gradients; methods with local losses, such "
            "as dgl, do not",
            stacklevel=stacklevel,
        )


def build_stage(
    setup: Setup,
    index: int,
    count: int,
    module: nn.Module,
    signal: Signal,
    signal_network: nn.Module,
    before: ToPrevious,
    after: ToNext,
    recorder: Recorder,
    world: World | None = None,
    carriers: Backends | None = None,
    uses: ReceiveStats | None = None,
    ledger: SendStats | None = None,
) -> Stage:
    """One stage, moved to its device, with all that it holds.

    Ports are wrapped where there is a codec. ``world`` and ``carriers`` are for the processes
    that share the stage's work; a ledger is made if none is given.

    Raises:
        OptionError: Its layers cannot honour the method.
    """
    method = setup.method
    delay = method.delay(index, count)
    module.to(setup.device)
    signal_network.to(setup.device)
    check_compatible(module, method.linearize, delay, index, setup.precision)
    trained = [p for p in module.parameters() if p.requires_grad]
    helping = list(signal_network.parameters())
    rate = method.first_stage_rate if index == 0 and count > 1 else 1.0
    average = None
    seed = setup.seed
    if world is not None and carriers is not None and world.replicas > 1:
        average = partial(GradientSync, world=world, group=carriers.reductions)
        # Replicas have other samples, and want other numbers for their dropout.
        seed += world.replica << 32
    ledger = ledger or SendStats()
    if setup.codec != Exact():
        before, after = _coded(setup, index, count, before, after, seed, ledger)
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
            trained if signal.learns_from_gradient else trained + helping,
            setup.optimizer,
            setup.scheduler,
            scheduler_unit=setup.scheduler_unit,
            reduce=method.reduce,
            lr_factor=rate,
            average=average,
        ),
        signal_updater=Updater(
            helping if signal.learns_from_gradient else [],
            setup.optimizer,
            setup.scheduler,
            scheduler_unit=setup.scheduler_unit,
            average=average,
        ),
        seed=seed,
        device=setup.device,
        precision=setup.dtype,
        recorder=recorder,
        ledger=ledger,
        uses=uses,
        on_nan=setup.on_nan,
        skipping=setup.skip_batches,
    )


def _coded(
    setup: Setup,
    index: int,
    count: int,
    before: ToPrevious,
    after: ToNext,
    seed: int,
    ledger: SendStats,
) -> tuple[ToPrevious, ToNext]:
    """The ports of a stage, with the codec between them and the stages on their other side."""
    codec, gradients = setup.codec, setup.codec.gradients
    if index > 0:
        before = EncodedPort(before, gradients, codec, seed)
    if index < count - 1:
        free = setup.method.replay is not None
        after = EncodedPort(after, codec, gradients, seed + index, ledger, alone=free)
    return before, after


@torch.no_grad()
def build_signals(
    setup: Setup, modules: Sequence[nn.Module], sample: Tree
) -> tuple[list[Signal], list[nn.Module]]:
    """Where the error of each stage comes from, and each signal's own network.

    The last stage has the network's own loss. Networks are made for the shapes that the sample
    takes on its way.

    Raises:
        OptionError: An output is not what a signal needs.
    """
    signals = [setup.method.signal] * (len(modules) - 1) + [Objective()]
    shapes: list[tuple[int, ...]] = []
    dtypes: list[torch.dtype] = []
    value = sample
    with evaluation_mode(*modules):
        for k, module in enumerate(modules):
            value = module(copy_tensors(value))
            real = isinstance(value, torch.Tensor) and value.is_floating_point()
            if k < len(modules) - 1 and not signals[k].needs_gradient and not real:
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
        with seeded_rng(setup.seed, k, 0, "signal", setup.device):
            network = signal.network(shapes[k], outputs)
        networks.append(network.to(dtypes[k]))
    return signals, networks

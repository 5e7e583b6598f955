"""What all engines are made of: stages with their signals, from a method and modules."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
from torch import nn

from hocket.distributed.gradient_sync import Average
from hocket.distributed.world import World
from hocket.engine.async_clock import Pace
from hocket.errors import OptionError
from hocket.losses import Loss
from hocket.methods.method import Method
from hocket.modes import evaluating
from hocket.signals import Objective
from hocket.signals.signal import Signal
from hocket.stage.compatibility import require_honoured
from hocket.stage.linearize import build_linearizer
from hocket.stage.nonfinite import NonFinite
from hocket.stage.optimizer import OptimizerFactory, Per, SchedulerFactory, Updater
from hocket.stage.rng import randomness
from hocket.stage.stage import Stage
from hocket.timeline import Recorder
from hocket.transport.backends import Carriers
from hocket.transport.codecs import Codec, Exact
from hocket.transport.encoded import Coded, Ledger
from hocket.transport.port import After, Before
from hocket.transport.replay_buffer import Uses
from hocket.tree import Tree, copied

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
        scheduler_per: Whether the scheduler counts epochs or updates.
        seed: Where initial weights of signals and all randomness of the stages come from.
        device: Where all stages compute.
        precision: ``fp32`` or ``bf16`` (autocast).
        trace: Whether to keep the span of every action.
        batchnorm: ``local``, or ``shared`` for statistics over the replicas of a stage.
        codec: How what crosses an edge is written.
        checksum: Whether tensors that go to another process leave with a checksum.
        resumable: Whether to keep what a state needs of batches and packets in flight.
        pace: How fast each stage is, where each runs freely; equally fast if not given.
        non_finite: What becomes of a batch whose numbers are NaN or infinite.
        skipping: Batches that are skipped, whatever their numbers.

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
    checksum: bool
    resumable: bool
    batchnorm: BatchNorm
    pace: Pace | None
    non_finite: NonFinite
    skipping: frozenset[int]

    def __post_init__(self) -> None:
        for name, value, known in (
            ("precision", self.precision, get_args(Precision)),
            ("batchnorm", self.batchnorm, get_args(BatchNorm)),
            ("non_finite", self.non_finite, get_args(NonFinite)),
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


def stage_of(
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
    uses: Uses | None = None,
    ledger: Ledger | None = None,
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
    ledger = ledger or Ledger()
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
        uses=uses,
        non_finite=setup.non_finite,
        skipping=setup.skipping,
    )


def _coded(
    setup: Setup,
    index: int,
    count: int,
    before: Before,
    after: After,
    seed: int,
    ledger: Ledger,
) -> tuple[Before, After]:
    """The ports of a stage, with the codec between them and the stages on their other side."""
    codec, gradients = setup.codec, setup.codec.gradients
    if index > 0:
        before = Coded(before, gradients, codec, seed)
    if index < count - 1:
        free = setup.method.replay is not None
        after = Coded(after, codec, gradients, seed + index, ledger, alone=free)
    return before, after


@torch.no_grad()
def signals_of(
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
    return signals, networks

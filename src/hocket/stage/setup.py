"""The options of a training that all of its stages share, checked in one place."""

from dataclasses import dataclass, field
from typing import Literal

import torch

from hocket.errors import OptionError, format_problems, without_effect
from hocket.methods.method import Method
from hocket.methods.simulated.stage_speeds import StageSpeeds
from hocket.optim.factory import (
    OptimizerFactory,
    SchedulerFactory,
    check_factories,
)
from hocket.options import NEEDED, RANGES, out_of_range, require_functions, wrong_fields
from hocket.signals.losses import Loss, cross_entropy
from hocket.stage.finite.nonfinite import OnNaN
from hocket.stage.update.clipping import Clipping
from hocket.stage.update.loss_scale import DynamicScale, LossScale, NoScale
from hocket.stage.update.updater import SchedulerUnit
from hocket.transport.codecs import Codec, Exact

Precision = Literal["fp32", "bf16", "fp16"]
BatchNorm = Literal["local", "shared"]
Broadcast = Literal["none", "first"]
Compiler = Literal["inductor", "aot_eager"]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Options of a training that all of its stages share.

    Attributes:
        method: The method.
        loss: The objective of the last stage, and of auxiliary heads.
        evaluation_loss: Loss that evaluations report.
        optimizer: Builds the optimizer of a stage from its parameters.
        scheduler: Builds the scheduler of a stage from its optimizer.
        scheduler_unit: The scheduler counts epochs or updates.
        warmup_updates: Number of first updates in which the learning rates rise.
        clip: Limit of the norm of a stage's gradient.
        seed: Seed of initial weights of auxiliary networks, and of the stages' randomness.
        device: Device of the stages of this process.
        precision: ``fp32``, or ``bf16`` or ``fp16`` for autocast; the last with a loss scale.
        channels_last: Keep 4-dimensional tensors in that memory format.
        compile: Backend of torch.compile for the layers of each stage; None to compile none.
        streams: Let the stages of one process compute on streams of their own, on a GPU.
        record_timeline: Keep the time span of every action.
        codec: Codec of the tensors that cross an edge.
        checksum: Send tensors to other processes with a checksum.
        resumable: Keep what a checkpoint needs of batches and packets in flight.
        batchnorm: ``local``, or ``shared`` for statistics over the replicas of a stage.
        broadcast: ``first`` to begin with the weights of the first process in all processes.
        replicas: Number of processes that share the work of a stage.
        timeout_s: Seconds that an action of a step may let another process wait.
        slow_timeout_s: The same for all that is no action of a step.
        stage_speeds: Speeds of stages that run freely; equal ones if None.
        on_nan: ``stop`` the training at a batch whose numbers become NaN or infinite, or
            ``skip`` the batch.
        check_every: Ticks after which a stage looks for NaN and infinity; by default
            `ticks_per_check`.
        skip_batches: Numbers of batches to skip, counted over all epochs.

    Raises:
        OptionError: An option has a value that does not exist, or contradicts another.
    """

    method: Method
    loss: Loss
    optimizer: OptimizerFactory
    evaluation_loss: Loss = cross_entropy
    scheduler: SchedulerFactory | None = None
    scheduler_unit: SchedulerUnit = "epoch"
    warmup_updates: int = 0
    clip: Clipping = field(default_factory=Clipping)
    seed: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: Precision = "fp32"
    channels_last: bool = False
    compile: Compiler | None = None
    streams: bool = False
    record_timeline: bool = False
    codec: Codec = field(default_factory=Exact)
    checksum: bool = True
    resumable: bool = False
    batchnorm: BatchNorm = "local"
    broadcast: Broadcast = "none"
    replicas: int = 1
    timeout_s: float = 60.0
    slow_timeout_s: float = 1800.0
    stage_speeds: StageSpeeds | None = None
    on_nan: OnNaN = "stop"
    check_every: int | None = None
    skip_batches: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        problems = wrong_fields(self) + out_of_range(self, RANGES)
        problems += without_effect(self, NEEDED)
        problems += [
            f"skip_batches has {batch!r}; batches are numbered from 0"
            for batch in self.skip_batches
            if isinstance(batch, int) and batch < 0
        ]
        if problems:
            raise OptionError(format_problems("these options are impossible", problems))
        require_functions(loss=self.loss, evaluation_loss=self.evaluation_loss)
        check_factories(self.optimizer, self.scheduler)
        if self.slow_timeout_s < self.timeout_s:
            raise OptionError(
                f"slow_timeout_s is {self.slow_timeout_s:g}, and timeout_s, the limit of a "
                f"training step, is {self.timeout_s:g}; use at least as many seconds"
            )
        if self.replicas > 1 and (self.on_nan == "skip" or self.skip_batches):
            raise OptionError(
                f"{self.replicas} replicas share each batch, and do not agree on which to "
                "skip; leave on_nan at 'stop', or use one replica"
            )
        if self.compile is not None and self.batchnorm == "shared":
            raise OptionError(
                "batchnorm is 'shared', whose sums over the replicas cannot be compiled; leave "
                "compile out, or batchnorm at 'local'"
            )
        if self.ticks_per_check > 1 and self.on_nan == "skip":
            raise OptionError(
                f"check_every is {self.check_every} and on_nan is 'skip', but a batch can be "
                "skipped only before it is learned from; leave check_every at 1, or on_nan at "
                "'stop'"
            )
        self._check_loss_scale()
        if self.skip_batches and self.method.free_running:
            raise OptionError(
                f"the stages of method {self.method.name!r} run freely, and each numbers its "
                "batches for itself; leave skip_batches out"
            )

    def _check_loss_scale(self) -> None:
        """Check that batches whose gradients overflow can be skipped, if there may be some.

        Raises:
            OptionError: They cannot, or float16 is not enough for the method.
        """
        if self.precision != "fp16":
            return
        if self.ticks_per_check > 1 or self.replicas > 1:
            raise OptionError(
                f"precision is 'fp16', check_every is {self.ticks_per_check} and replicas is "
                f"{self.replicas}, but a batch whose gradient overflows has to be skipped "
                "before it is learned from, by all who share it; leave both at 1, or use "
                "'bf16', which needs no loss scale"
            )
        if self.method.signal.learns_from_gradient:
            raise OptionError(
                f"precision is 'fp16', and method {self.method.name!r} predicts gradients, "
                "whose own numbers are too small for float16; use 'bf16', or another method"
            )

    def check_alone(self, stages: int) -> None:
        """Check that a single process can train like this.

        Args:
            stages: Number of stages.

        Raises:
            OptionError: There are replicas.
        """
        if self.replicas != 1:
            raise OptionError(
                f"replicas is {self.replicas}, but there is only this process; start "
                f"{self.replicas * stages}, with `hocket launch --processes` or torchrun"
            )

    def check_streams(self, stages: int) -> None:
        """Check that streams let stages of one process overlap.

        Args:
            stages: Number of stages in this process.

        Raises:
            OptionError: They would not.
        """
        kind, method = self.device.type, self.method
        if self.streams and (kind != "cuda" or method.free_running or stages == 1):
            free = "run freely" if method.free_running else "wait for each other"
            raise OptionError(
                "streams let stages in lockstep overlap on one GPU, and there are "
                f"{stages} in this process, which {free}, on device {str(self.device)!r}; "
                "leave streams out"
            )

    @property
    def ticks_per_check(self) -> int:
        """Batches of a stage after which it looks for NaN and infinity.

        By default one where the numbers are at hand, or where a batch has to be skipped before
        it is learned from; otherwise a device would wait for the host at each look.
        """
        if self.check_every is not None:
            return self.check_every
        skips = self.on_nan == "skip" or self.precision == "fp16"
        return 1 if skips or self.device.type == "cpu" else 50

    def warmup_lr_factor(self, update: int) -> float:
        """Return the factor of the warm-up on the learning rates of an update.

        Args:
            update: Number of updates before it.
        """
        return min(1.0, (update + 1) / (self.warmup_updates + 1))

    def autocast(self) -> torch.autocast:
        """Return the context manager of the precision to compute in."""
        low = torch.float16 if self.precision == "fp16" else torch.bfloat16
        return torch.autocast(self.device.type, low, enabled=self.precision != "fp32")

    def build_loss_scale(self) -> LossScale:
        """Build the scale of the backward of one stage, which float16 needs."""
        return DynamicScale() if self.precision == "fp16" else NoScale()

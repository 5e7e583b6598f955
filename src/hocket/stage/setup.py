"""The options of a training that all of its stages share, checked in one place."""

from dataclasses import dataclass, field
from typing import Literal

import torch

from hocket.codecs import Codec, Exact
from hocket.errors import OptionError, format_problems, without_effect
from hocket.methods.method import Method
from hocket.methods.simulated.stage_speeds import StageSpeeds
from hocket.optim.factory import OptimizerFactory, SchedulerFactory, wrong_factories
from hocket.options import NEEDED, RANGES, out_of_range, wrong_fields, wrong_functions
from hocket.signals.losses import Loss, cross_entropy
from hocket.stage.finite.nonfinite import OnNaN
from hocket.stage.update.clipping import Clipping
from hocket.stage.update.loss_scale import DynamicScale, LossScale, NoScale
from hocket.stage.update.updater import SchedulerUnit

Precision = Literal["fp32", "bf16", "fp16"]
BatchNorm = Literal["local", "shared"]
Broadcast = Literal["none", "first"]
Compiler = Literal["inductor", "aot_eager"]


@dataclass(frozen=True, kw_only=True)
class UpdateOptions:
    """Options of the updates of all stages.

    Attributes:
        optimizer: Builds the optimizer of a stage from its parameters.
        scheduler: Builds the scheduler of a stage from its optimizer.
        scheduler_unit: The scheduler counts epochs or updates.
        warmup_updates: Number of first updates in which the learning rates rise.
        clip: Limit of the norm of a stage's gradient.
    """

    optimizer: OptimizerFactory
    scheduler: SchedulerFactory | None = None
    scheduler_unit: SchedulerUnit = "epoch"
    warmup_updates: int = 0
    clip: Clipping = field(default_factory=Clipping)

    def warmup_lr_factor(self, update: int) -> float:
        """Return the factor of the warm-up on the learning rates of an update.

        Args:
            update: Number of updates before it.
        """
        return min(1.0, (update + 1) / (self.warmup_updates + 1))


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """Options of the device of all stages, and of the numbers that it computes with.

    Attributes:
        device: Device of the stages of this process.
        precision: ``fp32``, or ``bf16`` or ``fp16`` for autocast; the last with a loss scale.
        channels_last: Keep 4-dimensional tensors in that memory format.
        compile: Backend of torch.compile for the layers of each stage; None to compile none.
        streams: Let the stages of one process compute on separate streams of a GPU.
    """

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: Precision = "fp32"
    channels_last: bool = False
    compile: Compiler | None = None
    streams: bool = False

    def autocast(self) -> torch.autocast:
        """Return the context manager of the precision to compute in."""
        low = torch.float16 if self.precision == "fp16" else torch.bfloat16
        return torch.autocast(self.device.type, low, enabled=self.precision != "fp32")

    def build_loss_scale(self) -> LossScale:
        """Build the scale of the backward of one stage, which float16 needs."""
        return DynamicScale() if self.precision == "fp16" else NoScale()


@dataclass(frozen=True, kw_only=True)
class ProcessOptions:
    """Options of what crosses the edges between stages, and of processes.

    Attributes:
        codec: Codec of the tensors that cross an edge.
        checksum: Send tensors to other processes with a checksum.
        batchnorm: ``local``, or ``shared`` for statistics over the replicas of a stage.
        broadcast: ``first`` to begin with the weights of the first process in all processes.
        replicas: Number of processes that share the work of a stage.
        timeout_s: Seconds that an action of a step may let another process wait.
        slow_timeout_s: The same for everything that is no action of a step.
        stage_speeds: Speeds of stages that run freely; equal ones if None.
    """

    codec: Codec = field(default_factory=Exact)
    checksum: bool = True
    batchnorm: BatchNorm = "local"
    broadcast: Broadcast = "none"
    replicas: int = 1
    timeout_s: float = 60.0
    slow_timeout_s: float = 1800.0
    stage_speeds: StageSpeeds | None = None


@dataclass(frozen=True, kw_only=True)
class Setup(UpdateOptions, DeviceOptions, ProcessOptions):
    """Options of a training that all of its stages share; the bases have most of them.

    Attributes:
        method: The method.
        loss: The objective of the last stage, and of auxiliary heads.
        evaluation_loss: Loss that evaluations report.
        seed: Seed of initial weights of auxiliary networks, and of the stages' randomness.
        record_timeline: Keep the time span of every action.
        resumable: Keep what a checkpoint needs of batches and packets in flight.
        on_nan: ``stop`` the training at a batch whose numbers become NaN or infinite, or
            ``skip`` the batch.
        check_every: Ticks after which a stage looks for NaN and infinity; by default
            `ticks_per_check`.
        skip_batches: Numbers of batches to skip, counted over all epochs.

    Raises:
        OptionError: Options have values that do not exist, or contradict each other; the
            message lists all of them.
    """

    method: Method
    loss: Loss
    evaluation_loss: Loss = cross_entropy
    seed: int = 0
    record_timeline: bool = False
    resumable: bool = False
    on_nan: OnNaN = "stop"
    check_every: int | None = None
    skip_batches: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        # Each option for itself.
        problems = wrong_fields(self)
        comparable = not problems
        problems += out_of_range(self, RANGES)
        problems += wrong_functions(loss=self.loss, evaluation_loss=self.evaluation_loss)
        problems += wrong_factories(self.optimizer, self.scheduler)
        problems += [
            f"skip_batches has {batch!r}; batches are numbered from 0"
            for batch in self.skip_batches
            if isinstance(batch, int) and batch < 0
        ]

        # Options with each other, unless one has a value of another type.
        problems += without_effect(self, NEEDED)
        if comparable:
            problems += self._contradictions()
        if problems:
            raise OptionError(format_problems("these options are impossible", problems))

    def _contradictions(self) -> list[str]:
        """Return one problem for each set of options that contradict each other."""
        problems = self._loss_scale_problems()

        # Options that exclude each other.
        if self.slow_timeout_s < self.timeout_s:
            problems.append(
                f"slow_timeout_s is {self.slow_timeout_s:g}, and timeout_s, the limit of a "
                f"training step, is {self.timeout_s:g}; use at least as many seconds"
            )
        if self.compile is not None and self.batchnorm == "shared":
            problems.append(
                "batchnorm is 'shared', whose sums over the replicas cannot be compiled; leave "
                "compile out, or batchnorm at 'local'"
            )

        # Batches can be skipped only where a stage decides alone, and in time.
        if self.replicas > 1 and (self.on_nan == "skip" or self.skip_batches):
            problems.append(
                f"{self.replicas} replicas share each batch, and do not agree on which to "
                "skip; leave on_nan at 'stop', or use one replica"
            )
        if self.ticks_per_check > 1 and self.on_nan == "skip":
            problems.append(
                f"check_every is {self.check_every} and on_nan is 'skip', but a batch can be "
                "skipped only before it is learned from; leave check_every at 1, or on_nan at "
                "'stop'"
            )
        if self.skip_batches and self.method.free_running:
            problems.append(
                f"the stages of method {self.method.name!r} run freely, and each numbers its "
                "batches for itself; leave skip_batches out"
            )
        return problems

    def _loss_scale_problems(self) -> list[str]:
        """Return reasons why batches whose gradients overflow in float16 cannot be skipped."""
        if self.precision != "fp16":
            return []
        problems = []
        if self.ticks_per_check > 1 or self.replicas > 1:
            problems.append(
                f"precision is 'fp16', check_every is {self.ticks_per_check} and replicas is "
                f"{self.replicas}, but a batch whose gradient overflows has to be skipped "
                "before it is learned from, by all who share it; leave both at 1, or use "
                "'bf16', which needs no loss scale"
            )
        if self.method.signal.learns_from_gradient:
            problems.append(
                f"precision is 'fp16', and method {self.method.name!r} predicts gradients, "
                "whose numbers are too small for float16; use 'bf16', or another method"
            )
        return problems

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

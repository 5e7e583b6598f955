"""The options of a training that all of its stages share, checked in one place."""

from dataclasses import dataclass, field
from typing import Literal, get_args

import torch

from hocket.errors import OptionError
from hocket.methods.method import Method
from hocket.methods.stage_speeds import StageSpeeds
from hocket.options import check_choice
from hocket.signals.losses import Loss
from hocket.stage.nonfinite import OnNaN
from hocket.stage.optimizer import OptimizerFactory, SchedulerFactory, SchedulerUnit
from hocket.transport.codecs import Codec, Exact

Precision = Literal["fp32", "bf16"]
BatchNorm = Literal["local", "shared"]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Options of a training that all of its stages share.

    Attributes:
        method: The method.
        loss: The objective of the last stage, and of auxiliary heads.
        optimizer: Builds the optimizer of a stage from its parameters.
        scheduler: Builds the scheduler of a stage from its optimizer.
        scheduler_unit: The scheduler counts epochs or updates.
        seed: Seed of initial weights of auxiliary networks, and of the stages' randomness.
        device: Device of the stages of this process.
        precision: ``fp32``, or ``bf16`` for autocast.
        channels_last: Keep 4-dimensional tensors in that memory format.
        record_timeline: Keep the time span of every action.
        codec: Codec of the tensors that cross an edge.
        checksum: Send tensors to other processes with a checksum.
        resumable: Keep what a checkpoint needs of batches and packets in flight.
        batchnorm: ``local``, or ``shared`` for statistics over the replicas of a stage.
        replicas: Number of processes that share the work of a stage.
        timeout_s: Seconds that a process may let another one wait.
        stage_speeds: Speeds of stages that run freely; equal ones if None.
        on_nan: ``stop`` the training at a batch whose numbers become NaN or infinite, or
            ``skip`` the batch.
        skip_batches: Numbers of batches to skip, counted over all epochs.

    Raises:
        OptionError: An option has a value that does not exist, or contradicts another.
    """

    method: Method
    loss: Loss
    optimizer: OptimizerFactory
    scheduler: SchedulerFactory | None = None
    scheduler_unit: SchedulerUnit = "epoch"
    seed: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: Precision = "fp32"
    channels_last: bool = False
    record_timeline: bool = False
    codec: Codec = field(default_factory=Exact)
    checksum: bool = True
    resumable: bool = False
    batchnorm: BatchNorm = "local"
    replicas: int = 1
    timeout_s: float = 60.0
    stage_speeds: StageSpeeds | None = None
    on_nan: OnNaN = "stop"
    skip_batches: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        check_choice("precision", self.precision, get_args(Precision))
        check_choice("batchnorm", self.batchnorm, get_args(BatchNorm))
        check_choice("on_nan", self.on_nan, get_args(OnNaN))
        if self.replicas > 1 and (self.on_nan == "skip" or self.skip_batches):
            raise OptionError(
                f"{self.replicas} replicas share each batch, and do not agree on which to "
                "skip; leave on_nan at 'stop', or use one replica"
            )
        if self.skip_batches and self.method.free_running:
            raise OptionError(
                f"the stages of method {self.method.name!r} run freely, and each numbers its "
                "batches for itself; leave skip_batches (on_nan='restore') out"
            )

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """Data type of autocast; None if it is off."""
        return torch.bfloat16 if self.precision == "bf16" else None

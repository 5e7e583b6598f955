"""Options of a training, besides the network, the method, the optimizer, loss and device."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from hocket.codecs.codec import Codec
from hocket.optim.factory import SchedulerFactory
from hocket.options.common_options import COMMON_GROUPS, CommonOptions
from hocket.signals.losses import Loss


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(CommonOptions):
    """Options of :class:`hocket.Trainer`, which checks them, as one value with types.

    ``help(hocket.Trainer)`` describes each of them.
    """

    scheduler: SchedulerFactory | None = None
    """Builds a scheduler from a stage's optimizer."""
    codec: Codec | str | None = None
    """Codec of the packets between stages, such as VQ(groups=16), also as text such as bf16;
    exact if not given."""
    stage_speeds: Sequence[float] | None = None
    """Speed of each stage, for a method whose stages run freely; equal speeds if not given."""
    broadcast: Literal["none", "first"] = "none"
    """Initial weights among several processes: first for the weights in the process of rank 0;
    with none, weights that differ are refused."""
    evaluation_loss: Loss | None = None
    """Loss that evaluations report; the loss of the training if not given."""
    resumable: bool = False
    """Keep what a checkpoint needs of batches in flight: with stash and live the weights and
    statistics of each of their forwards."""
    skip_batches: Collection[int] = ()
    """Batches to skip in any case, by their number over all epochs."""


FIRST_OF_GROUP = COMMON_GROUPS | {
    "scheduler": "Optimization",
    "codec": "Delays, packets and speeds",
    "broadcast": "Replicas and waits",
    "evaluation_loss": "Records",
    "resumable": "Checkpoints and NaN",
}
"""Title of each group of options, by those that it begins with."""

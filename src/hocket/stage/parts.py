"""The parts that a stage is built from, next to the options that all stages share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from torch import nn

from hocket.distributed.replicas.gradient_sync import GradientSync
from hocket.distributed.replicas.meetings import Meetings
from hocket.signals.signal import Signal
from hocket.stage.layers.module_tensors import NetworkNames
from hocket.timeline import Recorder
from hocket.transport.packet import Activation
from hocket.transport.port import ToNext, ToPrevious
from hocket.transport.stats import ReceiveStats, SendStats

BuildReduction: TypeAlias = Callable[[Sequence[nn.Parameter]], GradientSync]
"""Builds what adds up the gradients of the replicas of a stage."""
BuildMeetings: TypeAlias = Callable[[Sequence[nn.Parameter]], Meetings]
"""Builds the meetings of the replicas of a stage, for the weights that it trains."""


@dataclass(frozen=True, kw_only=True)
class StageParts:
    """Parts of one stage.

    Attributes:
        index: Number of the stage, from 0.
        count: Number of stages of the network.
        module: Layers of the stage.
        signal: Signal that its error comes from.
        signal_network: Auxiliary network of that signal.
        to_previous: Port to the stage before, or to the source of batches.
        to_next: Port to the next stage; behind the last stage it sends nothing.
        recorder: Recorder of the time that it spends.
        previous_inverts: The stage before computes its input from its output, which it gets
            back with the gradient.
        send_stats: Statistics of what it sends to the next stage.
        receive_stats: Statistics of the buffer that it draws from; None without a buffer.
        seed_offset: Number that is added to the seed, so that replicas draw different dropout.
        reduction: Builds what adds up gradients over replicas; None if nothing does.
        meetings: Builds the rare meetings of replicas; None if there are none.
        names: Names of its parameters, buffers and layers in the network.
    """

    index: int
    count: int
    module: nn.Module
    signal: Signal
    signal_network: nn.Module
    to_previous: ToPrevious
    to_next: ToNext
    recorder: Recorder
    previous_inverts: bool
    send_stats: SendStats = field(default_factory=SendStats)
    receive_stats: ReceiveStats | None = None
    seed_offset: int = 0
    reduction: BuildReduction | None = None
    meetings: BuildMeetings | None = None
    names: NetworkNames = field(default_factory=NetworkNames)

    @property
    def is_last(self) -> bool:
        """True for the last stage of the network."""
        return self.index == self.count - 1

    def previous_waits(self, activation: Activation) -> bool:
        """Return True if the stage before waits for gradients of a batch, or for its output."""
        return self.previous_inverts or any(activation.differentiable)

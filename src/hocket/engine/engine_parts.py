"""Parts from which an engine is built."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from torch import nn

from hocket.distributed.replicas.exchange import Exchange
from hocket.distributed.replicas.gradient_sync import GradientSync
from hocket.distributed.replicas.meet import Meet, as_meet
from hocket.distributed.replicas.meetings import Meetings
from hocket.distributed.world.solo_world import SoloWorld
from hocket.distributed.world.world import World
from hocket.engine.build_signals import build_signals
from hocket.engine.event import Watcher
from hocket.engine.gradient_error import GradientErrorMeter
from hocket.errors import OptionError
from hocket.signals.signal import Signal
from hocket.stage.layers.module_tensors import NetworkNames
from hocket.stage.layers.reversible import inverts
from hocket.stage.parts import StageParts
from hocket.stage.setup import Setup
from hocket.timeline import Recorder
from hocket.transport.port import ToNext, ToPrevious
from hocket.tree import Tree


@dataclass(frozen=True)
class EngineParts:
    """All that an engine is built from.

    Attributes:
        setup: Options that all stages share.
        modules: Layers of every stage.
        sample: A small batch of inputs where the layers are, the same in all processes.
        watchers: Called after every action of this process.
        world: This process among the others.
        meter: Compares late gradients with the true ones; None to compare none.
        names: Names of parameters, buffers and layers in the network.
    """

    setup: Setup
    modules: Sequence[nn.Module]
    sample: Tree
    watchers: Sequence[Watcher]
    world: World | SoloWorld
    meter: GradientErrorMeter | None = None
    names: NetworkNames = field(default_factory=NetworkNames)

    @cached_property
    def signals(self) -> tuple[list[Signal], list[nn.Module]]:
        """Signal of each stage, and its auxiliary network."""
        return build_signals(self.setup, self.modules, self.sample)

    @cached_property
    def meet(self) -> Meet | None:
        """Way in which the replicas of a stage meet; None if they do not.

        Raises:
            OptionError: A stage has fewer weights than the meetings have fragments.
        """
        if (meet := as_meet(self.setup.meet)) is None:
            return None
        for k, pair in enumerate(zip(self.modules, self.signals[1], strict=True)):
            weights = {p for module in pair for p in module.parameters() if p.requires_grad}
            if 0 < len(weights) < meet.fragments:
                raise OptionError(
                    f"meet has {meet.fragments} fragments, and stage {k} has only "
                    f"{len(weights)} weight tensors to divide; use fewer fragments"
                )
        return meet

    def of_stage(
        self, index: int, to_previous: ToPrevious, to_next: ToNext, **more: Any
    ) -> StageParts:
        """Return the parts of one stage.

        Args:
            index: Number of the stage.
            to_previous: Port to the stage before, or to the source of batches.
            to_next: Port to the next stage.
            more: Other parts, such as its recorder.
        """
        signals, networks = self.signals
        count, before = len(self.modules), index - 1
        parts = {"recorder": Recorder(index, keep=self.setup.record_timeline)} | more
        return StageParts(
            index=index,
            count=count,
            module=self.modules[index],
            names=self.names,
            previous_inverts=index > 0
            and inverts(self.setup.method, self.modules[before], before, count),
            signal=signals[index],
            signal_network=networks[index],
            to_previous=to_previous,
            to_next=to_next,
            **parts,
        )


def as_replica(
    parts: StageParts, replica: int, exchange: Exchange, meet: Meet | None
) -> StageParts:
    """Return the parts of a stage that is one of several replicas, with its own dropout.

    Args:
        parts: Parts of the stage.
        replica: Number of the replica.
        exchange: Connection to the same stage of the other replicas.
        meet: Way in which they meet; None to average every gradient.
    """
    parts = replace(parts, seed_offset=replica << 32)
    if meet is None:
        return replace(parts, reduction=partial(GradientSync, exchange=exchange))
    return replace(parts, meetings=partial(Meetings, meet=meet, exchange=exchange))

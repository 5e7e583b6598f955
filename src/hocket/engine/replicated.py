"""The engine that executes a program for several replicas of each stage in one process.

It gives the bits of a process for each replica of each stage.
"""

from collections.abc import Sequence

import torch
from torch import nn

from hocket.engine.engine import LockstepEngine
from hocket.engine.event import Event, Watcher, perform
from hocket.engine.share import take_share
from hocket.methods.method import Method
from hocket.program.action import Action, Tick
from hocket.program.program import Program
from hocket.stage.report import ActionReport
from hocket.stage.stage import Stage
from hocket.stage.steps import Steps, advance, in_turn
from hocket.stage.update.updater import Updater, copy_numbers
from hocket.transport.mailbox import Source
from hocket.tree import Tree, map_tensors


class ReplicatedEngine(LockstepEngine):
    """Executes each action for all replicas of its stage before the next action.

    Only the first replica is the network of the user, and watchers see it alone. The others
    follow its changes, except edits through ``.data``, which PyTorch does not count. Each event
    has the report of the first replica, with the loss of the whole batch.

    Args:
        method: The method.
        replicas: Stages of each replica, in order.
        sources: Source of batches of each replica.
        watchers: Called after every action.
    """

    def __init__(
        self,
        method: Method,
        replicas: Sequence[Sequence[Stage]],
        sources: Sequence[Source],
        watchers: Sequence[Watcher],
    ) -> None:
        super().__init__(Program(method, len(replicas[0])), replicas[0])
        self._replicas = replicas
        self._sources = sources
        self._watchers = watchers
        # Layers and networks of signals of each replica.
        self._networks = [
            nn.ModuleList(net for s in stages for net in (s.module, s.signal_network))
            for stages in replicas
        ]
        self._tensors = [[*each.parameters(), *each.buffers()] for each in self._networks]
        self._versions = self._present_versions()

    @property
    def all_stages(self) -> Sequence[Stage]:
        """Stages of all replicas, one replica after another."""
        return [stage for stages in self._replicas for stage in stages]

    def start_at(self, ticks: int, batches: int, updates: int) -> None:
        """Let all replicas continue as the first one does; see the base."""
        super().start_at(ticks, batches, updates)
        for stages in self._replicas[1:]:
            for first, other in zip(self.stages, stages, strict=True):
                other.load_state_dict(map_tensors(torch.clone, first.state_dict()))

    def load_state_dict(self, parts: Sequence[Tree]) -> None:
        """See the base."""
        super().load_state_dict(parts)
        self._versions = self._present_versions()

    def _send(self, inputs: Tree, targets: Tree, epoch: int) -> None:
        self._follow_changes()
        count = len(self._replicas)
        for number, source in enumerate(self._sources):
            fraction, own = take_share((inputs, targets), number, count, self.stages[0])
            source.send(self.program.batch_count, epoch, *own, fraction)

    def _execute(self, tick: Tick) -> list[Event]:
        events, number = [], self.program.tick_count - 1
        for action in tick:
            stages = [stages[action.stage] for stages in self._replicas]
            reports = in_turn([_steps(stage, action, number) for stage in stages])
            event = Event(number, action, _of_whole_batch(action, reports))
            for watch in self._watchers:
                watch(event, stages[0])
            events.append(event)
        self._versions = self._present_versions()
        return events

    @torch.no_grad()
    def _follow_changes(self) -> None:
        """Let other replicas follow what the user has changed between two batches.

        These are weights and buffers of the network and of signals, frozen weights, modes of
        layers, and numbers of the optimizers, such as their rates.
        """
        # Tensors whose values the user has changed, and weights that are frozen now.
        pairs = zip(self._versions, self._present_versions(), strict=True)
        edited = [then != now for then, now in pairs]
        for tensors in self._tensors[1:]:
            for first, other, is_edited in zip(self._tensors[0], tensors, edited, strict=True):
                if is_edited:
                    other.copy_(first)
                if other.requires_grad != first.requires_grad:
                    other.requires_grad_(first.requires_grad)

        # Modes of layers, and numbers of optimizers.
        leader, *others = self._networks
        for network in others:
            for layer, its_copy in zip(leader.modules(), network.modules(), strict=True):
                its_copy.training = layer.training
        for stages in self._replicas[1:]:
            for stage, follower in zip(self.stages, stages, strict=True):
                _follow_rates(stage.updater, follower.updater)
                _follow_rates(stage.signal_updater, follower.signal_updater)

    def _present_versions(self) -> list[int]:
        """Return how often each tensor of the first replica was changed."""
        return [tensor._version for tensor in self._tensors[0]]


def _follow_rates(updater: Updater, follower: Updater) -> None:
    """Give an optimizer the numbers that the first replica's has."""
    if updater.optimizer is not None and follower.optimizer is not None:
        groups = zip(
            updater.optimizer.param_groups, follower.optimizer.param_groups, strict=True
        )
        for group, its_copy in groups:
            its_copy.update(copy_numbers(group))


def _steps(stage: Stage, action: Action, tick: int) -> Steps[ActionReport]:
    """Do an action in steps, whose times are recorded one by one."""
    steps = stage.steps(action)
    while (report := perform(stage, action, tick, advance, steps)) is None:
        yield
    return report


def _of_whole_batch(action: Action, reports: Sequence[ActionReport]) -> ActionReport:
    """Return the report of the first replica, with the loss of the whole batch."""
    first = reports[0]
    if not first.has_loss or action.kind == "T":  # whose loss has no targets to weigh it by
        return first

    def targets() -> float:
        return sum(report.targets or 0 for report in reports)

    def loss() -> float:
        return sum((r.loss or 0.0) * r.targets for r in reports if r.targets) / (targets() or 1)

    return ActionReport(
        first.epoch,
        first.version,
        staleness=first.staleness,
        loss=loss,
        targets=targets,
        gradient_norm=lambda: first.gradient_norm,
        parts=reports,
    )

"""A run of layers that trains by itself: forward, backward and update, without a schedule.

First, middle and last stage are the same class. They differ in what they hold: the ports to
their neighbours, and the signal that their error comes from.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from hocket.errors import CheckpointError
from hocket.program.action import Action
from hocket.stage.core import StageCore, build_core
from hocket.stage.finite.late_check import check_pending
from hocket.stage.in_flight import NOT_KEPT, DeferredTarget, ForwardedBatch
from hocket.stage.parts import StageParts
from hocket.stage.passes.backward import backward
from hocket.stage.passes.edges import backward_roots, graph_leaves
from hocket.stage.passes.forward import forward
from hocket.stage.passes.learn import learn
from hocket.stage.passes.update import end_exchange, update
from hocket.stage.report import ActionReport
from hocket.stage.setup import Setup
from hocket.stage.steps import Steps, in_turn
from hocket.stage.weight_copies.forward_state import (
    ForwardState,
    mismatches,
    named_tensors,
    set_tensors,
)
from hocket.transport.packet import Activation
from hocket.tree import Tree, map_tensors, tensors

_ALONE: Mapping[str, Callable[[StageCore, int], ActionReport]] = {"F": forward}
_WITH_REPLICAS: Mapping[str, Callable[[StageCore, int], Steps[ActionReport]]] = {
    "B": backward,
    "U": update,
    "T": learn,
}


class Stage:
    """One stage at work.

    Args:
        setup: Options that all stages share.
        parts: Layers, signal and ports of this stage.

    Attributes:
        core: Everything that the stage holds; the other attributes are parts of it.
        index: Number of the stage, from 0.
        is_last: True for the last stage of the network.
        module: Layers of the stage.
        signal_network: Auxiliary network of the signal.
        updater: Updater of the layers, with their optimizer.
        signal_updater: Updater of a network that learns from targets.
        untrained: Weights that no optimizer has.
        recorder: Recorder of the time that the stage spends.
        send_stats: Statistics of what it sends to the next stage.
        receive_stats: Statistics of the buffer that it draws from; None without a buffer.
        in_flight: Batches between their forward and their backward.
        late_check: Search for NaN and infinity once in several ticks.
    """

    def __init__(self, setup: Setup, parts: StageParts) -> None:
        self.core = core = build_core(setup, parts)
        self.index = parts.index
        self.is_last = parts.is_last
        self.module = parts.module
        self.signal_network = parts.signal_network
        self.updater = core.updater
        self.signal_updater = core.signal_updater
        self.untrained = core.untrained
        self.recorder = parts.recorder
        self.send_stats = parts.send_stats
        self.receive_stats = parts.receive_stats
        self.in_flight = core.in_flight
        self.late_check = core.checks.late
        self._draws = core.updater.may_draw or core.signal_updater.may_draw

    @property
    def gradients(self) -> list[Tensor | None]:
        """Gradients of the last backward, one for each weight; empty after an update."""
        return self.core.gradients

    def steps(self, action: Action) -> Steps[ActionReport]:
        """Do one action in steps, each of which needs the one before of all replicas.

        Raises:
            NonFiniteError: An output, a loss or a gradient is NaN or infinite, and that is
                to stop the training; or a weight is.
            PacketError: The action needs a packet that is not there.
            LinearizeError: The stage's layers are not compatible with the linearization.
        """
        steps = self._steps(action)
        if self._draws:
            steps = self.core.contexts.around_passes(action, steps)
        return steps

    def _steps(self, action: Action) -> Steps[ActionReport]:
        do_alone = _ALONE.get(action.kind)
        with self.core.weights.at(action):
            if do_alone is not None:
                report = do_alone(self.core, action.batch)
            else:
                report = yield from _WITH_REPLICAS[action.kind](self.core, action.batch)
        if not self.late_check.postpones:
            report.read()
        return report

    def execute(self, action: Action) -> ActionReport:
        """Do one action of the only replica in this process; see `steps`."""
        return in_turn([self.steps(action)])[0]

    def end_exchange(self) -> Steps[None]:
        """Complete what is under way between replicas, once no batch is in flight."""
        return end_exchange(self.core)

    def state_dict(self) -> Tree:
        """Return everything that the stage remembers between two ticks, as plain values.

        Its tensors are the stage's own: write them to disk before the next tick.

        Raises:
            CheckpointError: A batch is in flight, and the state of its forward was not kept.
        """
        check_pending([self.late_check])
        core, parts = self.core, self.core.parts
        return {
            "layers": named_tensors(parts.module),
            "signal": named_tensors(parts.signal_network),
            "updater": core.updater.state_dict(),
            "signal_updater": core.signal_updater.state_dict(),
            "held_weights": core.weights.state_dict(),
            "remedies": core.updater.remedies.state_dict(),
            "loss_scale": core.loss_scale.state_dict(),
            "meetings": core.meetings.state_dict() if core.meetings is not None else {},
            "in_flight": [_forwarded_state(core, batch) for batch in core.in_flight.values()],
            "deferred_targets": [
                {"activation": vars(target.activation), "output": target.output}
                for target in core.deferred_targets.values()
            ],
            "to_previous": parts.to_previous.state_dict(),
            "to_next": parts.to_next.state_dict(),
            "epochs": dict(core.epochs),
            "send_stats": vars(parts.send_stats).copy(),
        }

    def load_state_dict(self, state: Tree) -> None:
        """Continue from the state of a stage of the same layers and the same method."""
        core, parts = self.core, self.core.parts
        names = ("in_flight", "deferred_targets", "to_previous", "to_next")
        in_flight, deferred, to_previous, to_next = map_tensors(
            lambda tensor: tensor.to(core.setup.device), [state[name] for name in names]
        )

        # Weights before forwards are repeated: some are at the newest weights.
        set_tensors(parts.module, state["layers"])
        for batch in in_flight:
            _repeat_forward(core, batch)
        for target in deferred:
            _defer_target(core, Activation(**target["activation"]), target["output"])

        # And afterwards, as others are at older weights, or move statistics.
        set_tensors(parts.module, state["layers"])
        set_tensors(parts.signal_network, state["signal"])

        # What remembers something besides weights.
        core.updater.load_state_dict(state["updater"])
        core.signal_updater.load_state_dict(state["signal_updater"])
        core.weights.load_state_dict(state["held_weights"])
        core.updater.remedies.load_state_dict(state["remedies"])
        core.loss_scale.load_state_dict(state["loss_scale"])
        if core.meetings is not None:
            core.meetings.load_state_dict(state["meetings"])
        core.epochs = dict(state["epochs"])
        vars(parts.send_stats).update(state["send_stats"])
        parts.to_previous.load_state_dict(to_previous)
        parts.to_next.load_state_dict(to_next)
        core.checks.late.forget()

    def mismatches(self, state: Tree) -> list[str]:
        """Return one line for each reason why a state is not one of this stage."""
        place = f"stage {self.index}"
        return [
            *mismatches(self.module, state["layers"], place),
            *mismatches(self.signal_network, state["signal"], f"{place}, signal"),
            *self.updater.mismatches(state["updater"], place),
        ]

    def persistent_fault(self) -> str | None:
        """Describe the first NaN or infinity in what outlives a batch; None without one."""
        checks = self.core.checks
        return checks.layers.persistent_fault() or checks.signal.persistent_fault()


def _forwarded_state(core: StageCore, forwarded: ForwardedBatch) -> Tree:
    """Return the packet of a batch in flight, and the state of its forward.

    Raises:
        CheckpointError: That state was not kept.
    """
    activation, state = forwarded.activation, forwarded.forward_state
    if state is None and not activation.skipped:
        raise CheckpointError(
            f"stage {core.parts.index}: batch {activation.batch} is in flight, and the weights "
            "and buffers of its forward were not kept; build the trainer with resumable=True"
        )
    return {
        "activation": vars(activation),
        "differentiable": forwarded.differentiable,
        "version": forwarded.version,
        "past": vars(state) if state is not None else None,
    }


def _repeat_forward(core: StageCore, state: Tree) -> None:
    """Forward a batch in flight again, as it was forwarded before the checkpoint."""
    activation, past = Activation(**state["activation"]), state["past"]
    forward_state = None if past is None else ForwardState(**past)
    leaves, output = None, NOT_KEPT  # of a batch that is skipped, or will be inverted
    if forward_state is not None and not core.linearizer.inverts:
        if core.checks.forward.edits_weights:
            core.linearizer.after_update()
        leaves = graph_leaves(activation)
        with core.contexts.computing(activation.batch, "forward"):
            output = core.linearizer.rebuild_output(leaves, forward_state)
    core.in_flight[activation.batch] = ForwardedBatch(
        activation, leaves, output, state["differentiable"], state["version"], forward_state
    )


@torch.no_grad()
def _defer_target(core: StageCore, activation: Activation, output: Tree) -> None:
    """Build a deferred loss again, which depends on nothing but what it is built from."""
    if activation.skipped:
        core.deferred_targets[activation.batch] = DeferredTarget(None, activation, None)
        return
    unknown = (None,) * len(tensors(output))
    roots = backward_roots(core, activation.batch, output, activation.targets, unknown)
    assert roots.deferred is not None, "it was one of the same signal"
    target = DeferredTarget(roots.deferred, activation, output)
    core.deferred_targets[activation.batch] = target

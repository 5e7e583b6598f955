"""A run of layers that trains by itself: forward, backward and update, without a schedule.

First, middle and last stage are the same class. They differ in what they hold: the ports to
their neighbours, and the signal that their error comes from.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from hocket.modes import evaluation_mode
from hocket.program import Action
from hocket.signals.losses import are_class_indices
from hocket.signals.signal import BackwardRoots, SignalInput
from hocket.stage.back_propagate import back_propagate, graph_leaves
from hocket.stage.compatibility import ForbidForward
from hocket.stage.deferred_targets import DeferredTarget, DeferredTargets
from hocket.stage.in_flight import ForwardedBatch, InFlight
from hocket.stage.linearize import build_linearizer
from hocket.stage.nonfinite import NonFiniteCheck, first_nonfinite
from hocket.stage.optimizer import Updater
from hocket.stage.parts import StageParts
from hocket.stage.prediction import Prediction, add_to_ensemble
from hocket.stage.report import ActionReport
from hocket.stage.rng import Pass, forward_without_buffer_updates, seeded_rng
from hocket.stage.setup import Setup
from hocket.stage.skipping import send_skipped, skip_backward, skip_forward
from hocket.stage.stage_state import read_state, state_mismatches, write_state
from hocket.transport.packet import Activation, Gradient
from hocket.tree import Tree, copy_tensors, map_tensors, tensors


class Stage:
    """One stage at work.

    Args:
        setup: Options that all stages share.
        parts: Layers, signal and ports of this stage.
    """

    def __init__(self, setup: Setup, parts: StageParts) -> None:
        method, signal = setup.method, parts.signal
        self.index = parts.index
        self.module = parts.module
        self.signal = signal
        self.signal_network = parts.signal_network
        self.to_previous = parts.to_previous
        self.to_next = parts.to_next
        self.recorder = parts.recorder
        self.send_stats = parts.send_stats
        self.receive_stats = parts.receive_stats
        self.device = setup.device
        self.in_flight = InFlight(self.index)
        self.deferred_targets = DeferredTargets(self.index)
        self.epochs: dict[int, int] = {}  # of batches whose update is to come
        self.gradients: list[Tensor | None] = []  # of the last backward, for watchers
        self.linearizer = build_linearizer(
            method.linearize,
            method.delay(self.index, parts.count),
            method.statistics,
            keep_states=setup.resumable,
        )
        self.updater, self.signal_updater = _build_updaters(setup, parts)
        self._loss = setup.loss
        self._seed = setup.seed + parts.seed_offset
        self._autocast_dtype = setup.autocast_dtype
        self._skip_batches = setup.skip_batches
        self.check = NonFiniteCheck(self.module, self.updater, setup.on_nan)
        self._signal_check = NonFiniteCheck(
            self.signal_network, self.signal_updater, setup.on_nan
        )
        self._actions: Mapping[str, Callable[[int], ActionReport]] = {
            "F": self._forward,
            "B": self._backward,
            "U": self._update,
            "T": self._learn,
        }

    def execute(self, action: Action) -> ActionReport:
        """Do one action.

        Raises:
            NonFiniteError: An output, a loss or a gradient is NaN or infinite, and that is
                to stop the training; or a weight is.
            PacketError: The action needs a packet that is not there.
            LinearizeError: The stage's layers are not compatible with the linearization.
        """
        return self._actions[action.kind](action.batch)

    def predict(self, values: Tree, targets: Tree, ensemble: Tensor | None) -> Prediction:
        """Forward a batch for evaluation, in the precision of training.

        Args:
            values: Output of the stage before, with tensors of shape (B, ...).
            targets: Targets of the batch. Only class indices have exits.
            ensemble: Class scores of the exits of the stages before, (B, C) or (B, T, C).
        """
        with evaluation_mode(self.signal_network), self._autocast():
            output = self.module(copy_tensors(values))
            scores = self.signal.predict(self.signal_network, output)
        # If stages before have exits, the end of the network is one more.
        if scores is None and ensemble is not None:
            scores = output
        if scores is None or not are_class_indices(scores, targets):
            return Prediction(self.index, output, targets, None, None)
        together = add_to_ensemble(ensemble, scores)
        return Prediction(self.index, output, targets, scores, together)

    def state_dict(self) -> Tree:
        """Return all that the stage remembers between two ticks; see `write_state`."""
        return write_state(self)

    def load_state_dict(self, state: Tree) -> None:
        """Continue from the state of a stage of the same layers and the same method."""
        read_state(self, state)

    def mismatches(self, state: Tree) -> list[str]:
        """Return in words all that keeps a state from being one of this stage."""
        return state_mismatches(self, state)

    def persistent_fault(self) -> str | None:
        """Return in words the first NaN or infinity of all that outlives a batch, if any."""
        return self.check.persistent_fault() or self._signal_check.persistent_fault()

    def replay(self, batch: int, values: Tree) -> Tree:
        """Forward a batch once more, at the present weights, leaving no trace."""
        with self.computing(batch, "forward"):
            return forward_without_buffer_updates(self.module, copy_tensors(values))

    def pass_on(self, batch: int) -> ActionReport:
        """Forward a batch for the stages behind, as a stage that has finished training."""
        activation = self.to_previous.receive(batch)
        with torch.no_grad(), evaluation_mode(self.module), self._autocast():
            output = self.module(copy_tensors(activation.values))
        if (fault := self.check.fault_in_output(output)) is not None:
            return send_skipped(self, activation, fault)
        self._send(activation, output, (False,) * len(tensors(output)))
        return ActionReport(activation.epoch, self.updater.version)

    def backward_roots(
        self, output: Tree, targets: Tree, received: tuple[Tensor | None, ...]
    ) -> BackwardRoots:
        """Return where the backward starts, according to the stage's signal.

        Args:
            output: Output of the stage, with tensors of shape (B, ...).
            targets: Targets of the batch.
            received: Gradients that came back, one for each tensor of the output.
        """
        inputs = SignalInput(output, targets, received, self._loss)
        return self.signal.backward_roots(self.signal_network, inputs)

    @contextmanager
    def computing(self, batch: int, which: Pass) -> Iterator[None]:
        """Context manager with the random numbers and the precision of one pass."""
        with seeded_rng(self._seed, self.index, batch, which, self.device), self._autocast():
            yield

    @property
    def expects_answer(self) -> bool:
        """True if a gradient or a target comes back for every output."""
        return self.signal.needs_gradient or self.signal.learns_from_gradient

    def _forward(self, batch: int) -> ActionReport:
        activation = self.to_previous.receive(batch)
        if activation.skipped or batch in self._skip_batches:
            return skip_forward(self, activation)
        leaves = graph_leaves(activation)
        forward_state = self.linearizer.forward_state(self.module)
        self.check.save_buffers()
        with self.computing(batch, "forward"):
            output, get_output = self.linearizer.forward(self.module, leaves)
        if (fault := self.check.fault_in_output(output)) is not None:
            self.check.restore_buffers()
            return skip_forward(self, activation, fault)
        expects = self.expects_answer
        differentiable = tuple(
            expects and tensor.is_floating_point() for tensor in tensors(output)
        )
        self._send(activation, output, differentiable)
        version = self.updater.version
        self.in_flight.add(
            ForwardedBatch(
                activation, leaves, get_output, differentiable, version, forward_state
            )
        )
        return ActionReport(activation.epoch, version)

    def _send(
        self, activation: Activation, output: Tree, differentiable: tuple[bool, ...]
    ) -> None:
        values = map_tensors(lambda value: value.detach(), output)
        self.to_next.send(replace(activation, values=values, differentiable=differentiable))

    def _backward(self, batch: int) -> ActionReport:
        forwarded = self.in_flight.pop(batch)
        activation = forwarded.activation
        received: tuple[Tensor | None, ...] | None = (None,) * len(forwarded.differentiable)
        if self.signal.needs_gradient and any(forwarded.differentiable):
            received = self.to_next.receive(batch).values
        if activation.skipped or received is None or batch in self._skip_batches:
            return skip_backward(self, activation)
        self.check.save_buffers()
        self._signal_check.save_buffers()
        with self.computing(batch, "forward"):
            output = forwarded.get_output()
        seen = map_tensors(Tensor.detach, output) if self.signal.learns_from_gradient else None
        with self.computing(batch, "backward"):
            roots = self.backward_roots(output, activation.targets, received)
        del output
        # Before anything is sent: the stage where a fault began has to be the one to report it.
        leaves = tensors(forwarded.leaves)
        fault = first_nonfinite({"loss": roots.loss}) or self._signal_check.fault_in_buffers()
        if fault is None:
            guard = (
                ForbidForward(self.index)
                if self.linearizer.forbids_inner_forward
                else nullcontext()
            )
            back_propagate(roots, activation.share, guard)
            fault = self.check.fault_in_gradients(leaves)
        if fault is not None:
            self.check.restore_buffers()
            self._signal_check.restore_buffers()
            return skip_backward(self, activation, fault)
        if any(leaf.requires_grad for leaf in leaves):
            self.to_previous.send(Gradient(batch, tuple(leaf.grad for leaf in leaves)))
        self.gradients = self.updater.accumulate()
        if roots.deferred is not None:
            self.deferred_targets.add(DeferredTarget(roots.deferred, activation, seen))
        self.epochs[batch] = activation.epoch
        return ActionReport(
            epoch=activation.epoch,
            version=self.updater.version,
            staleness=self.updater.version - forwarded.version,
            loss=None if roots.loss is None else float(roots.loss),
            gradient_norm=self.check.compute_gradient_norm(self.gradients),
        )

    def _update(self, batch: int) -> ActionReport:
        epoch = self.epochs[batch]
        self.epochs = {b: e for b, e in self.epochs.items() if b > batch}
        version = self.updater.version
        if not self.updater.accumulated_count:
            return ActionReport(epoch, version, skipped=True)
        lr = self.updater.update(epoch)
        self.linearizer.after_update()
        return ActionReport(epoch, version, lr=lr)

    def _learn(self, batch: int) -> ActionReport:
        target = self.deferred_targets.pop(batch)
        received = self.to_next.receive(batch).values
        activation, updater = target.activation, self.signal_updater
        version = updater.version
        if target.loss is None or received is None or batch in self._skip_batches:
            return ActionReport(activation.epoch, version, skipped=True)
        with self.computing(batch, "learn"):
            loss = target.loss(received)
        share = None if activation.share == 1 else torch.full_like(loss, activation.share)
        loss.backward(share)
        fault = first_nonfinite({"loss": loss}) or self._signal_check.fault_in_gradients(())
        if fault is not None:
            self._signal_check.require_skippable(fault)
            updater.zero_grad()
            return ActionReport(activation.epoch, version, skipped=True, fault=fault)
        norm = self._signal_check.compute_gradient_norm(updater.accumulate())
        lr = updater.update(activation.epoch)
        value = float(loss.detach())
        return ActionReport(activation.epoch, version, loss=value, gradient_norm=norm, lr=lr)

    def _autocast(self) -> torch.autocast:
        enabled = self._autocast_dtype is not None
        return torch.autocast(self.device.type, self._autocast_dtype, enabled=enabled)


def _build_updaters(setup: Setup, parts: StageParts) -> tuple[Updater, Updater]:
    """Build the updater of the layers, and that of a network that learns from targets."""
    method, deferred = setup.method, parts.signal.learns_from_gradient
    weights = [p for p in parts.module.parameters() if p.requires_grad]
    auxiliary = list(parts.signal_network.parameters())
    first = parts.index == 0 and parts.count > 1
    updater = Updater(
        weights if deferred else weights + auxiliary,
        setup.optimizer,
        setup.scheduler,
        scheduler_unit=setup.scheduler_unit,
        reduce=method.reduce,
        lr_factor=method.first_stage_rate if first else 1.0,
        build_reduction=parts.reduction,
    )
    signal_updater = Updater(
        auxiliary if deferred else [],
        setup.optimizer,
        setup.scheduler,
        scheduler_unit=setup.scheduler_unit,
        build_reduction=parts.reduction,
    )
    return updater, signal_updater

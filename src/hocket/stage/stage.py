"""A run of layers that trains by itself: forward, backward and update, without a schedule.

First, middle and last stage are the same class. They differ in what they hold: the ports to
their neighbours, and the signal that their error comes from.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import chain

import torch
from torch import Tensor

from hocket.modes import evaluation_mode
from hocket.program import Action
from hocket.signals.losses import class_dimension, count_averaged
from hocket.signals.signal import BackwardRoots, SignalInput
from hocket.stage.accumulate import total_norm
from hocket.stage.back_propagate import back_propagate, graph_leaves, require_graph
from hocket.stage.build_linearizer import build_linearizer
from hocket.stage.compatibility import ForbidForward
from hocket.stage.compiled import build_compiled
from hocket.stage.corrected_weights import build_weights
from hocket.stage.deferred_targets import DeferredTarget, DeferredTargets
from hocket.stage.in_flight import ForwardedBatch, InFlight
from hocket.stage.known_layers import Draws, KnownLayers
from hocket.stage.late_check import LateCheck, look
from hocket.stage.module_tensors import ModuleTensors
from hocket.stage.nonfinite import NonFiniteCheck
from hocket.stage.outgoing import to_outgoing
from hocket.stage.parts import StageParts
from hocket.stage.prediction import Prediction, add_to_ensemble
from hocket.stage.report import ActionReport, LazyScalar, Number
from hocket.stage.rng import Pass, forward_without_buffer_updates, seeded_rng
from hocket.stage.setup import Setup
from hocket.stage.skipping import send_skipped, skip_backward, skip_forward
from hocket.stage.stage_state import read_state, state_mismatches, write_state
from hocket.stage.updaters import build_updaters
from hocket.transport.packet import Activation, Gradient
from hocket.tree import (
    Tree,
    copy_tensors,
    is_inexact,
    map_tensors,
    tensors,
)


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
        self._is_last = parts.index == parts.count - 1
        self.recorder = parts.recorder
        self.send_stats = parts.send_stats
        self.receive_stats = parts.receive_stats
        self.device = setup.device
        self.in_flight = InFlight(self.index)
        self.deferred_targets = DeferredTargets(self.index)
        self.epochs: dict[int, int] = {}  # of batches whose update is to come
        # Of the last backward, for watchers; the update lets them go.
        self.gradients: list[Tensor | None] = []
        self._layers = KnownLayers(self.module)
        self.linearizer = build_linearizer(
            method.linearize,
            method.graph_delay(self.index, parts.count),
            method.statistics,
            # Without delay no batch is in flight between two ticks.
            keep_states=setup.resumable and method.delay(self.index, parts.count) > 0,
            editable=self._layers.editable,
            compiled=build_compiled(setup, parts),
        )
        self.updater, self.signal_updater, self.untrained = build_updaters(setup, parts)
        self.weights = build_weights(
            method, parts, self.updater, self.linearizer, self.in_flight
        )
        self._loss = setup.loss
        self._signal_may_draw = signal.may_draw(setup.loss)
        self._seed = setup.seed + parts.seed_offset
        self._autocast = setup.autocast
        self._autocast_enabled = setup.precision != "fp32"
        self.loss_scale = setup.build_loss_scale()
        self._tensors = ModuleTensors(self.module)
        forbids = self.linearizer.forbids_inner_forward
        self._guard = ForbidForward(self.index) if forbids else None
        self._signal_layers = KnownLayers(self.signal_network)
        self._skip_batches = setup.skip_batches
        modules = self.module, self.signal_network
        updaters = self.updater, self.signal_updater
        self.late_check = LateCheck(setup.check_every, modules, updaters)
        self.check, self._signal_check = (
            NonFiniteCheck(*pair, setup.on_nan, self.late_check)
            for pair in zip(modules, updaters, strict=True)
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
        with self.weights.at(action):
            return self._actions[action.kind](action.batch)

    def predict(self, values: Tree, targets: Tree, ensemble: Tensor | None) -> Prediction:
        """Forward a batch for evaluation, in the precision of training.

        Args:
            values: Output of the stage before, with tensors of shape (B, ...).
            targets: Targets of the batch. Only class indices have exits.
            ensemble: Class scores of the exits of the stages before, (B, C) or (B, T, C).
        """
        with evaluation_mode(self.signal_network), self._autocast():
            output = self._to_outgoing(self.module(copy_tensors(values)))
            scores = self.signal.predict(self.signal_network, output)
        # If stages before have exits, the end of the network is one more.
        if scores is None and ensemble is not None:
            scores = output
        if scores is None or class_dimension(scores, targets) is None:
            return Prediction(self.index, output, targets, None, None)
        together = add_to_ensemble(ensemble, scores)
        return Prediction(self.index, output, targets, scores, together)

    def state_dict(self) -> Tree:
        """Return all that the stage remembers between two ticks; see `write_state`."""
        look([self.late_check])
        return write_state(self)

    def load_state_dict(self, state: Tree) -> None:
        """Continue from the state of a stage of the same layers and the same method."""
        read_state(self, state)
        self.late_check.forget()

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
        fault, _ = self.check.fault_in_output(output, lambda: [True] * len(tensors(output)))
        if fault is not None:
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

    def computing(
        self, batch: int, which: Pass, draws: Draws = "anything"
    ) -> AbstractContextManager[None]:
        """Return a context manager with the random numbers and the precision of one pass.

        Args:
            batch: Number of the batch.
            which: The pass.
            draws: Generators that the pass may draw from.
        """
        seeded = seeded_rng(self._seed, self.index, batch, which, self.device, draws)
        # Autocast that is off changes something only inside the caller's own.
        if self._autocast_enabled or torch.is_autocast_enabled(self.device.type):
            return _seeded_and_cast(seeded, self._autocast())
        return seeded

    def _output_of(self, forwarded: ForwardedBatch) -> Tree:
        """Return the output to differentiate, which may have to be computed."""
        if not self.linearizer.recomputes:
            return forwarded.get_output()
        batch = forwarded.activation.batch
        with self.computing(batch, "forward", self._layers.draws):
            return forwarded.get_output()

    def _roots_of(
        self, batch: int, output: Tree, targets: Tree, received: tuple[Tensor | None, ...]
    ) -> BackwardRoots:
        """Return where the backward starts, computed in the pass of the signal.

        Args:
            batch: Number of the batch.
            output: Output of the stage, with tensors of shape (B, ...).
            targets: Targets of the batch.
            received: Gradients that came back, one for each tensor of the output.
        """
        if self.signal.needs_gradient:  # what has come is only passed on
            return self.backward_roots(output, targets, received)
        draws = "anything" if self._signal_may_draw else self._signal_layers.draws
        with self.computing(batch, "backward", draws):
            return self.backward_roots(output, targets, received)

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
        with self.computing(batch, "forward", self._layers.draws):
            output, get_output = self.linearizer.forward(self.module, leaves)
        fault, masks = self.check.fault_in_output(
            output, lambda: self._needs_gradient(batch, leaves, output)
        )
        if fault is not None:
            self.check.restore_buffers()
            return skip_forward(self, activation, fault)
        expects = self.expects_answer
        differentiable = tuple(
            expects and is_inexact(tensor) and not mask
            for tensor, mask in zip(tensors(output), masks, strict=True)
        )
        if not self._is_last:
            self._send(activation, output, differentiable)
        version = self.weights.version
        self.in_flight.add(
            ForwardedBatch(
                activation, leaves, get_output, differentiable, version, forward_state
            )
        )
        return ActionReport(activation.epoch, version)

    def _send(
        self, activation: Activation, output: Tree, differentiable: tuple[bool, ...]
    ) -> None:
        self.to_next.send(
            Activation(
                activation.batch,
                activation.epoch,
                self._to_outgoing(output),
                differentiable,
                activation.targets,
                activation.share,
            )
        )

    def _to_outgoing(self, output: Tree) -> Tree:
        return to_outgoing(output, self._tensors.all())

    def _needs_gradient(self, batch: int, leaves: Tree, output: Tree) -> list[bool]:
        """Return for each tensor of an output whether it depends on weights or gradients."""
        with self.computing(batch, "forward"):
            return self.linearizer.needs_gradient(self.module, leaves, output)

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
        output = self._output_of(forwarded)
        seen = map_tensors(Tensor.detach, output) if self.signal.learns_from_gradient else None
        roots = self._roots_of(batch, output, activation.targets, received)
        leaves = tensors(forwarded.leaves)
        require_graph(roots, self.index, chain(self.updater.parameters, leaves))
        del output
        targets: Number = None
        if roots.loss is not None:
            targets = count_averaged(activation.targets, activation.values)
        # Before anything is sent: the stage where a fault began has to be the one to report it.
        fault = self.check.fault_in_loss(roots.loss) or self._signal_check.fault_in_buffers()
        overflowed = False
        if fault is None:
            plain = not self._guard or (self._layers.plain and self._signal_layers.plain)
            guard, scale = None if plain else self._guard, self.loss_scale
            back_propagate(roots, activation.share, guard, scale.factor)
            sent = scale.unscale(self.updater.parameters, leaves)
            fault, norm = self.check.fault_in_gradients(sent)
            overflowed = scale.judge(finite=fault is None)
        if fault is not None:
            self.check.restore_buffers()
            self._signal_check.restore_buffers()
            return skip_backward(self, activation, fault, overflowed=overflowed)
        if any([leaf.requires_grad for leaf in leaves]):
            # A gradient may share its memory with that of a weight, as both are views of one.
            weights = (*self.updater.parameters, *self.signal_updater.parameters)
            gradients = to_outgoing(sent, [p.grad for p in weights])
            self.to_previous.send(Gradient(batch, gradients))
        staleness = self.updater.version - forwarded.version
        then = self.weights.at_version(forwarded.version)
        self.gradients = self.updater.accumulate(staleness, then)
        if roots.deferred is not None:
            self.deferred_targets.add(DeferredTarget(roots.deferred, activation, seen))
        self.epochs[batch] = activation.epoch
        return ActionReport(
            epoch=activation.epoch,
            version=self.updater.version,
            staleness=staleness,
            loss=roots.loss,
            targets=targets,
            gradient_norm=self._require_finite(norm),
        )

    def _require_finite(self, norm: LazyScalar) -> Number:
        """Return the norm of the last gradient, over all replicas.

        Args:
            norm: Norm of this replica's gradient, which is finite.
        """
        if not self.updater.reduces:
            return norm
        return self.check.require_finite_norm(total_norm(self.gradients))

    def _update(self, batch: int) -> ActionReport:
        epoch = self.epochs[batch]
        self.epochs = {b: e for b, e in self.epochs.items() if b > batch}
        version = self.updater.version
        self.weights.before_update()
        if not self.updater.accumulated_count:
            return ActionReport(epoch, version, skipped=True)
        self.gradients = []
        lr = self.updater.update(epoch)
        self.untrained.warn_of_unfrozen()
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
        fault = self._signal_check.fault_in_loss(loss)
        if fault is None:
            fault, norm = self._signal_check.fault_in_gradients(())
        if fault is not None:
            self._signal_check.require_skippable(fault)
            updater.zero_grad()
            return ActionReport(activation.epoch, version, skipped=True, fault=fault)
        gradients = updater.accumulate()
        gradient_norm: Number = norm
        if updater.reduces:
            gradient_norm = self._signal_check.require_finite_norm(total_norm(gradients))
        lr = updater.update(activation.epoch)
        return ActionReport(
            activation.epoch, version, loss=loss.detach(), gradient_norm=gradient_norm, lr=lr
        )


@contextmanager
def _seeded_and_cast(
    seeded: AbstractContextManager[None], cast: torch.autocast
) -> Iterator[None]:
    with seeded, cast:
        yield

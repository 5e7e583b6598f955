"""A run of layers that trains by itself: forward, backward and update, without a schedule.

First, middle and last stage are the same class. They differ in what they hold: the ports to
their neighbours, and the signal that their error comes from.
"""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain

from torch import Tensor

from hocket.program import Action
from hocket.signals.losses import count_averaged, ignored_index
from hocket.signals.signal import BackwardRoots, SignalInput, expects_answer
from hocket.stage.finite.late_check import LateCheck, look
from hocket.stage.finite.nonfinite import NonFiniteCheck
from hocket.stage.in_flight import ForwardedBatch, InFlight
from hocket.stage.layers.compatibility import ForbidForward
from hocket.stage.layers.gradient_flow import GradientFlow, find_tables
from hocket.stage.layers.known_layers import KnownLayers
from hocket.stage.layers.module_tensors import ModuleTensors
from hocket.stage.linearize.build import build_linearizer
from hocket.stage.linearize.compiled import build_compiled
from hocket.stage.parts import StageParts
from hocket.stage.passes.back_propagate import back_propagate, graph_leaves, require_graph
from hocket.stage.passes.deferred_targets import (
    DeferredTarget,
    DeferredTargets,
    learn_from_target,
)
from hocket.stage.passes.exact_values import build_exact_values
from hocket.stage.passes.forward_check import build_forward_check
from hocket.stage.passes.module_calls import Passes
from hocket.stage.passes.outgoing import to_outgoing
from hocket.stage.passes.skip import skip_backward, skip_forward
from hocket.stage.report import ActionReport, Number
from hocket.stage.setup import Setup
from hocket.stage.state import read_state, state_mismatches, write_state
from hocket.stage.update.foreign_weights import ForeignWeights, drop_gradients
from hocket.stage.updaters import build_updaters
from hocket.stage.weights.corrected import build_weights
from hocket.transport.packet import Activation, Gradient
from hocket.tree import (
    Tree,
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
        self.is_last = parts.index == parts.count - 1
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
        # Of the last backward, for watchers; the update lets them go.
        self.gradients: list[Tensor | None] = []
        self._layers = KnownLayers(self.module)
        self.updater, self.signal_updater, self.untrained = build_updaters(setup, parts)
        self.linearizer = build_linearizer(
            method.linearize,
            method.graph_delay(self.index, parts.count),
            method.statistics,
            # Without delay no batch is in flight between two ticks.
            keep_states=setup.resumable and method.delay(self.index, parts.count) > 0,
            layers=self._layers,
            compiled=build_compiled(setup, parts),
            names=parts.names,
            trained=self.updater.parameters,
            flushes=method.flushes,
        )
        self.weights = build_weights(
            method, parts, self.updater, self.linearizer, self.in_flight
        )
        self.forward_check = build_forward_check(setup, parts, self._layers, self.weights)
        self._weights = (*self.updater.parameters, *self.signal_updater.parameters)
        self._loss, self.ignored_target = setup.loss, ignored_index(setup.loss)
        self._signal_may_draw = signal.may_draw(setup.loss)
        self.passes = Passes(setup, parts)
        self.loss_scale = setup.build_loss_scale()
        self._tensors = ModuleTensors(self.module)
        self.flow = GradientFlow(self._tensors)
        self.find_exact = build_exact_values(setup, parts)
        forbids = self.linearizer.forbids_inner_forward
        self._guard = ForbidForward(self.index) if forbids else None
        self._signal_layers = KnownLayers(self.signal_network)
        self._names = parts.names.parameters
        self._foreign = ForeignWeights(self._names, self.module, self.signal_network)
        self.skip_batches = setup.skip_batches
        modules = self.module, self.signal_network
        updaters = self.updater, self.signal_updater
        self.late_check = LateCheck(setup.ticks_per_check, modules, updaters, parts.names)
        self.check, self.signal_check = (
            NonFiniteCheck(*pair, setup.on_nan, self.late_check, parts.names)
            for pair in zip(modules, updaters, strict=True)
        )
        for updater in updaters:
            updater.zero_grad()  # of a backward before, which no batch of this training had
        self._actions: Mapping[str, Callable[[int], ActionReport]] = {
            "F": self._forward,
            "B": self._backward,
            "U": self._update,
            "T": partial(learn_from_target, self),
        }

    def execute(self, action: Action) -> ActionReport:
        """Do one action.

        Raises:
            NonFiniteError: An output, a loss or a gradient is NaN or infinite, and that is
                to stop the training; or a weight is.
            PacketError: The action needs a packet that is not there.
            LinearizeError: The stage's layers are not compatible with the linearization.
        """
        do = self._actions[action.kind]
        if not self.weights.replaces:
            return do(action.batch)
        with self.weights.at(action):
            return do(action.batch)

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
        return self.check.persistent_fault() or self.signal_check.persistent_fault()

    def backward_roots(
        self, batch: int, output: Tree, targets: Tree, received: tuple[Tensor | None, ...]
    ) -> BackwardRoots:
        """Return where the backward starts, according to the stage's signal.

        Args:
            batch: Number of the batch.
            output: Output of the stage, with tensors of shape (B, ...).
            targets: Targets of the batch.
            received: Gradients that came back, one for each tensor of the output.
        """
        inputs = SignalInput(output, targets, received, self._loss)
        if self.signal.needs_gradient:  # what has come is only passed on
            return self.signal.backward_roots(self.signal_network, inputs)
        draws = "anything" if self._signal_may_draw else self._signal_layers.draws
        with self.passes.computing(batch, "backward", draws):
            return self.signal.backward_roots(self.signal_network, inputs)

    def _output_of(self, forwarded: ForwardedBatch) -> Tree:
        """Return the output to differentiate, which may have to be computed."""
        if not self.linearizer.recomputes:
            return forwarded.output.get()
        batch = forwarded.activation.batch
        with self.passes.computing(batch, "forward", self._layers.draws):
            return forwarded.output.get()

    def _forward(self, batch: int) -> ActionReport:
        activation = self.to_previous.receive(batch)
        if activation.skipped or batch in self.skip_batches:
            return skip_forward(self, activation)
        leaves = graph_leaves(activation)
        forward_state = self.linearizer.forward_state(self.module)
        if self.forward_check.edits_weights:
            self.linearizer.after_update()
        self.check.save_buffers()
        inputs = tensors(leaves)
        with (
            self.passes.computing(batch, "forward", self._layers.draws),
            self.forward_check.checking(leaves),
        ):
            output, kept = self.linearizer.forward(self.module, leaves)
        outputs = tensors(output)
        find = partial(self._needs_gradient, batch, leaves, output)
        find_flow = partial(self.flow.through, outputs, inputs, find)
        fault, masks = self.check.fault_in_output(outputs, find_flow)
        if fault is not None:
            self.check.restore_buffers()
            return skip_forward(self, activation, fault)
        expects = expects_answer(self.signal)
        tables = find_tables(outputs, find_flow)
        differentiable = tuple(
            [
                expects and is_inexact(tensor) and not (mask or table)
                for tensor, mask, table in zip(outputs, masks, tables, strict=True)
            ]
        )
        self.send(activation, output, differentiable, self.find_exact(tables))
        version = self.weights.version
        self.in_flight.add(
            ForwardedBatch(activation, leaves, kept, differentiable, version, forward_state)
        )
        return ActionReport(activation.epoch, version)

    def send(
        self,
        activation: Activation,
        output: Tree,
        differentiable: tuple[bool, ...],
        exact: tuple[bool, ...] = (),
    ) -> None:
        """Send an output to the next stage.

        Args:
            activation: Packet that the stage received.
            output: Output of the stage, with tensors of shape (B, ...).
            differentiable: For each of these tensors, True if a gradient is to come back.
            exact: For each of them, True if no codec may change it; () if there is none.
        """
        if self.is_last:  # its loss comes from the graph, and nobody takes the output
            return
        self.to_next.send(
            Activation(
                activation.batch,
                activation.epoch,
                self.to_outgoing(output),
                differentiable,
                activation.targets,
                activation.share,
                exact,
            )
        )

    def to_outgoing(self, output: Tree) -> Tree:
        """Return an output that shares its memory with no weight or buffer of the stage."""
        return to_outgoing(output, self._tensors.all())

    def _needs_gradient(self, batch: int, leaves: Tree, output: Tree) -> list[bool]:
        """Return for each tensor of an output whether it depends on weights or gradients."""
        with self.passes.computing(batch, "forward"):
            return self.linearizer.needs_gradient(self.module, leaves, output)

    def _backward(self, batch: int) -> ActionReport:
        forwarded = self.in_flight.pop(batch)
        activation = forwarded.activation
        received: tuple[Tensor | None, ...] | None = (None,) * len(forwarded.differentiable)
        if self.signal.needs_gradient and any(forwarded.differentiable):
            received = self.to_next.receive(batch).values
        if activation.skipped or received is None or batch in self.skip_batches:
            return skip_backward(self, activation)
        self.check.save_buffers()
        self.signal_check.save_buffers()
        output = self._output_of(forwarded)
        seen = map_tensors(Tensor.detach, output) if self.signal.learns_from_gradient else None
        roots = self.backward_roots(batch, output, activation.targets, received)
        leaves = tensors(forwarded.leaves)
        require_graph(roots, self.index, chain(self.updater.parameters, leaves))
        targets: Number = None
        if roots.loss is not None:
            targets = count_averaged(
                output, activation.targets, activation.values, self.ignored_target
            )
        del output
        # Before anything is sent: the stage where a fault began has to be the one to report it.
        fault = self.check.fault_in_loss(roots.loss) or self.signal_check.fault_in_buffers()
        overflowed = False
        if fault is None:
            self._differentiate(roots, activation.share)
            forwarded.output.after_backward()
            scale = self.loss_scale
            sent = scale.unscale(self.updater.parameters, leaves)
            fault, norm = self.check.fault_in_gradients(sent)
            overflowed = scale.judge(finite=fault is None)
        if fault is not None:
            self.check.restore_buffers()
            self.signal_check.restore_buffers()
            return skip_backward(self, activation, fault, overflowed=overflowed)
        if any([leaf.requires_grad for leaf in leaves]):
            # A gradient may share its memory with that of a weight, as both are views of one.
            gradients = to_outgoing(sent, [p.grad for p in self._weights])
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
            gradient_norm=self.check.norm_over_replicas(norm, self.gradients),
        )

    def _differentiate(self, roots: BackwardRoots, share: float) -> None:
        """Back-propagate into the weights and inputs of the stage.

        Args:
            roots: Roots of the backward.
            share: Part of the batch that this process has.
        """
        known = self._layers.plain and self._signal_layers.plain
        plain = not self._guard or (known and self.forward_check.backward_is_checked)
        if any([weight.grad is not None for weight in self._weights]):
            drop_gradients(self._weights, self._names)
        looks = roots.loss is not None and self._foreign
        if looks:
            self._foreign.note()
        with self.passes.differentiating():
            guard = None if plain else self._guard
            back_propagate(roots, share, guard, self.loss_scale.factor)
        self.forward_check.backward_is_checked = True
        if looks:
            self._foreign.require_untouched(self.index)

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

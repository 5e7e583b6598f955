"""A run of layers that trains by itself: forward, backward, update, and nothing of schedules.

First, middle and last stage are the same class. What differs is what they hold: the ports to
their neighbours, and the signal that their error comes from.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from hocket.losses import Loss, are_class_numbers
from hocket.modes import evaluation_mode
from hocket.program import Action
from hocket.signals.signal import BackwardRoots, Signal
from hocket.stage.compatibility import ForwardForbidden
from hocket.stage.deferred_targets import DeferredTarget, DeferredTargets
from hocket.stage.forward_state import ForwardState, mismatches, named_values, set_values
from hocket.stage.in_flight import ForwardedBatch, InFlight
from hocket.stage.linearize import Linearizer
from hocket.stage.nonfinite import NonFiniteCheck, OnNaN, first_nonfinite
from hocket.stage.optimizer import Updater
from hocket.stage.prediction import Prediction, add_vote
from hocket.stage.report import Report
from hocket.stage.rng import Pass, forward_without_statistics, seeded_rng
from hocket.timeline import Recorder
from hocket.transport.encoded import SendStats
from hocket.transport.packet import Activation, Gradient
from hocket.transport.port import ToNext, ToPrevious
from hocket.transport.replay_buffer import ReceiveStats
from hocket.tree import Tree, copy_tensors, map_tensors, tensors


class Stage:
    """One stage at work.

    Args:
        index: Which stage it is, counted from 0.
        module: Its layers.
        signal: Where its error comes from.
        signal_network: The signal's own network.
        loss: The objective, for signals that take one.
        linearizer: How a late gradient is applied.
        before: The port its inputs come from.
        after: The port its outputs go to.
        updater: What updates the layers (and a head that trains with them).
        signal_updater: What updates a signal network that learns from targets.
        seed: Where the randomness of all its passes comes from.
        device: Where it computes.
        precision: The dtype to compute in where that is safe; None for that of the weights.
        recorder: What its time is recorded by.
        ledger: What it sends ahead is noted in.
        uses: What became of the packets that came for it, where it draws from a buffer.
        on_nan: What becomes of a batch whose numbers are NaN or infinite.
        skipping: Batches that are skipped, whatever their numbers.
    """

    def __init__(
        self,
        *,
        index: int,
        module: nn.Module,
        signal: Signal,
        signal_network: nn.Module,
        loss: Loss,
        linearizer: Linearizer,
        before: ToPrevious,
        after: ToNext,
        updater: Updater,
        signal_updater: Updater,
        seed: int,
        device: torch.device,
        precision: torch.dtype | None,
        recorder: Recorder,
        ledger: SendStats,
        uses: ReceiveStats | None = None,
        on_nan: OnNaN = "stop",
        skipping: frozenset[int] = frozenset(),
    ) -> None:
        self.index = index
        self.module = module
        self.signal = signal
        self.signal_network = signal_network
        self.updater = updater
        self.signal_updater = signal_updater
        self.recorder = recorder
        self.send_stats = ledger
        self.receive_stats = uses
        self.in_flight = InFlight(index)
        self.gradients: list[Tensor | None] = []  # of the last backward, for whoever watches
        self._loss = loss
        self._linearizer = linearizer
        self._before = before
        self._after = after
        self._seed = seed
        self._device = device
        self._precision = precision
        self._skipping = skipping
        self._guard = NonFiniteCheck(module, updater, on_nan)
        self._signal_guard = NonFiniteCheck(signal_network, signal_updater, on_nan)
        self._lessons = DeferredTargets(index)
        self._epochs: dict[int, int] = {}  # of batches whose update is to come

    def execute(self, action: Action) -> Report:
        """Do one action.

        Raises:
            NonFiniteError: An output, a loss or a gradient is NaN or infinite, and that is
                to stop the training; or a weight is.
            PacketError: The action needs a packet that is not there.
            LinearizeError: The stage's layers cannot honour the linearization.
        """
        return {
            "F": self._forward,
            "B": self._backward,
            "U": self._update,
            "T": self._learn,
        }[action.kind](action.batch)

    def predict(self, values: Tree, targets: Tree, votes: Tensor | None) -> Prediction:
        """What it makes of a batch that it is not trained on, in the precision of training.

        Args:
            values: The output of the stage before.
            targets: The targets of the batch; those that are no class numbers have no exits.
            votes: What the exits of the stages before say together.
        """
        with evaluation_mode(self.signal_network), self._cast():
            output = self.module(copy_tensors(values))
            prediction = self.signal.predict(self.signal_network, output)
        # Where stages before have exits, the end of the network is one more.
        if prediction is None and votes is not None:
            prediction = output
        if prediction is None or not are_class_numbers(prediction, targets):
            return Prediction(self.index, output, targets, None, None)
        return Prediction(self.index, output, targets, prediction, add_vote(votes, prediction))

    def state_dict(self) -> Tree:
        """All that the stage remembers between two ticks, as plain values.

        Its tensors are the stage's own: write them down before the next tick.

        Raises:
            CheckpointError: A batch is in flight, and what its forward needs to be done again
                was not kept.
        """
        return {
            "layers": named_values(self.module),
            "signal": named_values(self.signal_network),
            "updater": self.updater.state_dict(),
            "signal_updater": self.signal_updater.state_dict(),
            "pending": self.in_flight.state_dict(),
            "lessons": self._lessons.state_dict(),
            "before": self._before.state_dict(),
            "after": self._after.state_dict(),
            "epochs": dict(self._epochs),
            "send_stats": vars(self.send_stats).copy(),
        }

    def load_state_dict(self, state: Tree) -> None:
        """Go on from what a stage of the same layers and the same method remembered."""
        flying, lessons, before, after = map_tensors(
            lambda tensor: tensor.to(self._device),
            [state[name] for name in ("pending", "lessons", "before", "after")],
        )
        for own in flying:
            self._forward_again(own)
        for own in lessons:
            self._prepare_lesson(Activation(**own["activation"]), own["output"])
        # Last, as forwards and lessons may have moved statistics.
        set_values(self.module, state["layers"])
        set_values(self.signal_network, state["signal"])
        self.updater.load_state_dict(state["updater"])
        self.signal_updater.load_state_dict(state["signal_updater"])
        self._epochs = dict(state["epochs"])
        vars(self.send_stats).update(state["send_stats"])
        self._before.load_state_dict(before)
        self._after.load_state_dict(after)

    def persistent_fault(self) -> str | None:
        """What is NaN or infinite of all that stays from batch to batch, in words."""
        return self._guard.persistent_fault() or self._signal_guard.persistent_fault()

    def mismatches(self, state: Tree) -> list[str]:
        """What keeps a state from being one of this stage, in words."""
        place = f"stage {self.index}"
        return [
            *mismatches(self.module, state["layers"], place),
            *mismatches(self.signal_network, state["signal"], f"{place}, signal"),
            *self.updater.mismatches(state["updater"], place),
        ]

    def replay(self, batch: int, values: Tree) -> Tree:
        """The forward of a batch once more, at the weights of now, leaving no trace."""
        with self._computing(batch, "forward"):
            return forward_without_statistics(self.module, copy_tensors(values))

    def _forward(self, batch: int) -> Report:
        activation = self._before.receive(batch)
        if activation.skipped or batch in self._skipping:
            return self._pass_over(activation)
        leaves = _leaves(activation)
        past = self._linearizer.forward_state(self.module)
        self._guard.keep()
        with self._computing(batch, "forward"):
            output, graph = self._linearizer.forward(self.module, leaves)
        if (fault := self._guard.output(output)) is not None:
            self._guard.restore()
            return self._pass_over(activation, fault)
        wanted = self.signal.needs_gradient or self.signal.learns_from_gradient
        outputs = tensors(output)
        differentiable = tuple(wanted and each.is_floating_point() for each in outputs)
        self._send(activation, output, differentiable)
        version = self.updater.version
        self.in_flight.add(
            ForwardedBatch(activation, leaves, graph, differentiable, version, past)
        )
        return Report(activation.epoch, self.updater.version)

    def pass_on(self, batch: int) -> Report:
        """Forward a batch for the stages behind, as one that has finished learning."""
        activation = self._before.receive(batch)
        with torch.no_grad(), evaluation_mode(self.module), self._cast():
            output = self.module(copy_tensors(activation.values))
        if (fault := self._guard.output(output)) is not None:
            return self._pass_over(activation, fault, keep=False)
        self._send(activation, output, (False,) * len(tensors(output)))
        return Report(activation.epoch, self.updater.version)

    def _send(
        self, activation: Activation, output: Tree, differentiable: tuple[bool, ...]
    ) -> None:
        values = map_tensors(lambda value: value.detach(), output)
        self._after.send(replace(activation, values=values, differentiable=differentiable))

    def _backward(self, batch: int) -> Report:
        forwarded = self.in_flight.pop(batch)
        activation = forwarded.activation
        received: tuple[Tensor | None, ...] | None = (None,) * len(forwarded.differentiable)
        if self.signal.needs_gradient and any(forwarded.differentiable):
            received = self._after.receive(batch).values
        if activation.skipped or received is None or batch in self._skipping:
            return self._skip(activation)
        self._guard.keep()
        self._signal_guard.keep()
        with self._computing(batch, "forward"):
            output = forwarded.graph()
        seen = map_tensors(Tensor.detach, output) if self.signal.learns_from_gradient else None
        with self._computing(batch, "backward"):
            error = self.signal.backward_roots(
                self.signal_network, self._loss, output, activation.targets, received
            )
        del output
        # Before anything is sent: the stage where it began is the one to tell of it.
        leaves = tensors(forwarded.leaves)
        fault = first_nonfinite({"loss": error.loss}) or self._signal_guard.buffers()
        if fault is None:
            self._differentiate(error, activation.share)
            fault = self._guard.gradients(leaves)
        if fault is not None:
            self._guard.restore()
            self._signal_guard.restore()
            return self._skip(activation, fault)
        if any(leaf.requires_grad for leaf in leaves):
            self._before.send(Gradient(batch, tuple(leaf.grad for leaf in leaves)))
        self.gradients = self.updater.gather()
        if error.deferred is not None:
            self._lessons.add(DeferredTarget(error.deferred, activation, seen))
        self._epochs[batch] = activation.epoch
        return Report(
            epoch=activation.epoch,
            version=self.updater.version,
            staleness=self.updater.version - forwarded.version,
            loss=None if error.loss is None else float(error.loss),
            gradient_norm=self._guard.norm(self.gradients),
        )

    def _pass_over(
        self, activation: Activation, fault: str | None = None, *, keep: bool = True
    ) -> Report:
        """A forward of a batch that is skipped from here on: only that is sent ahead."""
        self._guard.require_skippable(fault)
        answered = (self.signal.needs_gradient or self.signal.learns_from_gradient,)
        self._after.send(replace(activation.without_values(), differentiable=answered))
        version = self.updater.version
        if keep:
            self.in_flight.add(ForwardedBatch.skipped(activation, answered, version))
        return Report(activation.epoch, version, skipped=True, fault=fault)

    def _skip(self, activation: Activation, fault: str | None = None) -> Report:
        """A backward of a batch that is skipped: only that is sent back."""
        self._guard.require_skippable(fault)
        batch, epoch = activation.batch, activation.epoch
        self.updater.drop()
        self.gradients = []
        if any(activation.differentiable):
            self._before.send(Gradient(batch, None))
        if self.signal.learns_from_gradient:
            self._lessons.skip(activation)
        self._epochs[batch] = epoch
        return Report(epoch, self.updater.version, skipped=True, fault=fault)

    def _differentiate(self, error: BackwardRoots, share: float) -> None:
        """Back-propagate the error into the weights and the leaves.

        A loss counts with the batch's share; a gradient that was received has it already.
        """
        gradients = [
            torch.full_like(root, share) if gradient is None and share != 1 else gradient
            for root, gradient in zip(error.roots, error.gradients, strict=True)
        ]
        pairs = zip(error.roots, gradients, strict=True)
        # A root without a graph: nothing of this stage or before it is trained.
        live = [
            (get_gradient_edge(root), gradient)
            for root, gradient in pairs
            if root.requires_grad
        ]
        guard = ForwardForbidden(self.index) if self._linearizer.guarded else nullcontext()
        with torch.no_grad(), guard:
            if live:
                torch.autograd.backward([e for e, _ in live], [g for _, g in live])

    def _update(self, batch: int) -> Report:
        epoch = self._epochs[batch]
        self._epochs = {b: e for b, e in self._epochs.items() if b > batch}
        version = self.updater.version
        if not self.updater.gathered:
            return Report(epoch, version, skipped=True)
        rate = self.updater.update(epoch)
        self._linearizer.after_update()
        return Report(epoch, version, lr=rate)

    def _learn(self, batch: int) -> Report:
        untaught = self._lessons.pop(batch)
        received = self._after.receive(batch).values
        activation, updater = untaught.activation, self.signal_updater
        version = updater.version
        if untaught.loss is None or received is None or batch in self._skipping:
            return Report(activation.epoch, version, skipped=True)
        with self._computing(batch, "learn"):
            loss = untaught.loss(received)
        share = None if activation.share == 1 else torch.full_like(loss, activation.share)
        loss.backward(share)
        fault = first_nonfinite({"loss": loss}) or self._signal_guard.gradients(())
        if fault is not None:
            self._signal_guard.require_skippable(fault)
            updater.drop()
            return Report(activation.epoch, version, skipped=True, fault=fault)
        norm = self._signal_guard.norm(updater.gather())
        rate = updater.update(activation.epoch)
        value = float(loss.detach())
        return Report(activation.epoch, version, loss=value, gradient_norm=norm, lr=rate)

    def _forward_again(self, state: Tree) -> None:
        activation = Activation(**state["activation"])
        differentiable, version = state["differentiable"], state["version"]
        if activation.skipped:
            self.in_flight.add(ForwardedBatch.skipped(activation, differentiable, version))
            return
        past, leaves = ForwardState(**state["past"]), _leaves(activation)
        with self._computing(activation.batch, "forward"):
            graph = self._linearizer.repeat(self.module, leaves, past)
        self.in_flight.add(
            ForwardedBatch(activation, leaves, graph, differentiable, version, past)
        )

    @torch.no_grad()
    def _prepare_lesson(self, activation: Activation, output: Tree) -> None:
        """A lesson depends on nothing but what it is made from, so it can be made again."""
        if activation.skipped:
            self._lessons.skip(activation)
            return
        unknown = (None,) * len(tensors(output))
        with self._computing(activation.batch, "backward"):
            error = self.signal.backward_roots(
                self.signal_network, self._loss, output, activation.targets, unknown
            )
        assert error.deferred is not None, "it was one of the same signal"
        self._lessons.add(DeferredTarget(error.deferred, activation, output))

    @contextmanager
    def _computing(self, batch: int, which: Pass) -> Iterator[None]:
        """The randomness and the precision of one pass."""
        with seeded_rng(self._seed, self.index, batch, which, self._device), self._cast():
            yield

    def _cast(self) -> torch.autocast:
        low = self._precision is not None
        return torch.autocast(self._device.type, self._precision, enabled=low)


def _leaves(activation: Activation) -> Tree:
    """What was received, as leaves of a graph."""
    flags = iter(activation.differentiable)
    return map_tensors(
        lambda value: value.detach().requires_grad_(next(flags)), activation.values
    )

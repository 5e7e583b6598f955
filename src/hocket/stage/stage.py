"""A run of layers that trains by itself: forward, backward, update, and nothing of schedules.

First, middle and last stage are the same class. What differs is what they hold: the ports to
their neighbours, and the signal that their error comes from.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from hocket.errors import CheckpointError, NonFiniteError, PacketError
from hocket.losses import classified
from hocket.method import Error, Lesson, Loss, Signal
from hocket.modes import evaluating
from hocket.program import Action
from hocket.relay.buffer import Uses
from hocket.relay.coded import Ledger
from hocket.relay.packet import Activation, Gradient
from hocket.relay.port import After, Before
from hocket.stage.answer import Answer, joined
from hocket.stage.honour import NoForward
from hocket.stage.linearize import Linearizer
from hocket.stage.past import Past, misfits, put_values, values_of
from hocket.stage.pending import Forwarded, Pending
from hocket.stage.rewind import Pass, randomness, uncounted
from hocket.timeline import Recorder
from hocket.tree import Tree, copied, map_tensors, tensors
from hocket.update.accumulate import total_norm
from hocket.update.step import Updater


@dataclass(frozen=True)
class Report:
    """What an action is known by afterwards.

    Attributes:
        epoch: The epoch of the batch.
        version: Updates that the stage's weights had seen when the action ran.
        staleness: For a backward: updates since the forward of the same batch.
        loss: For a backward: the loss that the stage saw, if it saw one; for a target: the
            loss of the signal's network.
        gradient_norm: For these two: Euclidean norm of the batch's gradient.
        rate: For an update or a target: the learning rate.
    """

    epoch: int
    version: int
    staleness: int | None = None
    loss: float | None = None
    gradient_norm: float | None = None
    rate: float | None = None


@dataclass(frozen=True)
class Untaught:
    """A lesson that waits for its target, with the batch's input and the stage's output."""

    lesson: Lesson
    activation: Activation
    output: Tree


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
        before: Before,
        after: After,
        updater: Updater,
        signal_updater: Updater,
        seed: int,
        device: torch.device,
        precision: torch.dtype | None,
        recorder: Recorder,
        ledger: Ledger,
        uses: Uses | None = None,
    ) -> None:
        self.index = index
        self.module = module
        self.signal = signal
        self.signal_network = signal_network
        self.updater = updater
        self.signal_updater = signal_updater
        self.recorder = recorder
        self.ledger = ledger
        self.uses = uses
        self.pending = Pending(index)
        self.gradients: list[Tensor | None] = []  # of the last backward, for whoever watches
        self._loss = loss
        self._linearizer = linearizer
        self._before = before
        self._after = after
        self._seed = seed
        self._device = device
        self._precision = precision
        self._lessons: dict[int, Untaught] = {}
        # Of batches whose update is to come. That of the last one counts, whose backward is in
        # the tick of the update, so that no state needs them.
        self._epochs: dict[int, int] = {}

    def execute(self, action: Action) -> Report:
        """Do one action.

        Raises:
            NonFiniteError: A loss or a gradient is NaN or infinite.
            PacketError: The action needs a packet that is not there.
            LinearizeError: The stage's layers cannot honour the linearization.
        """
        return {
            "F": self._forward,
            "B": self._backward,
            "U": self._update,
            "T": self._learn,
        }[action.kind](action.batch)

    def answer(self, values: Tree, targets: Tree, votes: Tensor | None) -> Answer:
        """What it makes of a batch that it is not trained on, in the precision of training.

        Args:
            values: The output of the stage before.
            targets: The targets of the batch; those that are no class numbers have no exits.
            votes: What the exits of the stages before say together.
        """
        with evaluating(self.signal_network), self._cast():
            output = self.module(copied(values))
            prediction = self.signal.predict(self.signal_network, output)
        # Where stages before have exits, the end of the network is one more.
        if prediction is None and votes is not None:
            prediction = output
        if prediction is None or not classified(prediction, targets):
            return Answer(self.index, output, targets, None, None)
        return Answer(self.index, output, targets, prediction, joined(votes, prediction))

    def state(self) -> Tree:
        """All that the stage remembers between two ticks, as plain values.

        Its tensors are the stage's own: write them down before the next tick.

        Raises:
            CheckpointError: A batch is in flight, and what its forward needs to be done again
                was not kept.
        """
        return {
            "layers": values_of(self.module),
            "signal": values_of(self.signal_network),
            "updater": self.updater.state(),
            "signal_updater": self.signal_updater.state(),
            "pending": [self._in_flight(forwarded) for forwarded in self.pending],
            "lessons": [
                {"activation": vars(lesson.activation), "output": lesson.output}
                for lesson in self._lessons.values()
            ],
            "before": self._before.state(),
            "after": self._after.state(),
            "ledger": vars(self.ledger).copy(),
        }

    def load(self, state: Tree) -> None:
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
        put_values(self.module, state["layers"])
        put_values(self.signal_network, state["signal"])
        self.updater.load(state["updater"])
        self.signal_updater.load(state["signal_updater"])
        vars(self.ledger).update(state["ledger"])
        self._before.load(before)
        self._after.load(after)

    def misfits(self, state: Tree) -> list[str]:
        """What keeps a state from being one of this stage, in words."""
        place = f"stage {self.index}"
        return [
            *misfits(self.module, state["layers"], place),
            *misfits(self.signal_network, state["signal"], f"{place}, signal"),
            *self.updater.misfits(state["updater"], place),
        ]

    def replay(self, batch: int, values: Tree) -> Tree:
        """The forward of a batch once more, at the weights of now, leaving no trace."""
        with self._computing(batch, "forward"):
            return uncounted(self.module, copied(values))

    def _forward(self, batch: int) -> Report:
        activation = self._before.receive(batch)
        leaves = _leaves(activation)
        past = self._linearizer.past(self.module)
        with self._computing(batch, "forward"):
            output, graph = self._linearizer.forward(self.module, leaves)
        wanted = self.signal.waits or self.signal.learns
        outputs = tensors(output)
        differentiable = tuple(wanted and each.is_floating_point() for each in outputs)
        self._send(activation, output, differentiable)
        version = self.updater.version
        self.pending.add(Forwarded(activation, leaves, graph, differentiable, version, past))
        return Report(activation.epoch, self.updater.version)

    def pass_on(self, batch: int) -> Report:
        """Forward a batch for the stages behind, as one that has finished learning."""
        activation = self._before.receive(batch)
        with torch.no_grad(), evaluating(self.module), self._cast():
            output = self.module(copied(activation.values))
        self._send(activation, output, (False,) * len(tensors(output)))
        return Report(activation.epoch, self.updater.version)

    def _send(
        self, activation: Activation, output: Tree, differentiable: tuple[bool, ...]
    ) -> None:
        self._after.send(
            replace(
                activation,
                values=map_tensors(lambda value: value.detach(), output),
                differentiable=differentiable,
            )
        )

    def _backward(self, batch: int) -> Report:
        forwarded = self.pending.pop(batch)
        received: tuple[Tensor | None, ...] = (None,) * len(forwarded.differentiable)
        if self.signal.waits and any(forwarded.differentiable):
            received = self._after.receive(batch).values
        targets = forwarded.activation.targets
        with self._computing(batch, "forward"):
            output = forwarded.graph()
        seen = map_tensors(Tensor.detach, output) if self.signal.learns else None
        with self._computing(batch, "backward"):
            error = self.signal.error(
                self.signal_network, self._loss, output, targets, received
            )
        del output
        # Before anything is sent: the stage where it began is the one to tell of it.
        loss = None if error.loss is None else _finite("loss", float(error.loss))
        self._differentiate(error, forwarded.activation.share)
        leaves = tensors(forwarded.leaves)
        if any(leaf.requires_grad for leaf in leaves):
            _finite("gradient norm", float(total_norm([leaf.grad for leaf in leaves])))
            self._before.send(Gradient(batch, tuple(leaf.grad for leaf in leaves)))
        self.gradients = self.updater.gather()
        if error.lesson is not None:
            self._lessons[batch] = Untaught(error.lesson, forwarded.activation, seen)
        self._epochs[batch] = forwarded.activation.epoch
        return Report(
            epoch=forwarded.activation.epoch,
            version=self.updater.version,
            staleness=self.updater.version - forwarded.version,
            loss=loss,
            gradient_norm=_finite("gradient norm", float(total_norm(self.gradients))),
        )

    def _differentiate(self, error: Error, share: float) -> None:
        """Back-propagate the error into the weights and the leaves.

        A loss counts with the batch's share; a gradient that was received has it already.
        """
        gradients = [
            torch.full_like(root, share) if gradient is None and share != 1 else gradient
            for root, gradient in zip(error.roots, error.gradients, strict=True)
        ]
        pairs = zip(error.roots, gradients, strict=True)
        # A root without a graph: nothing of this stage or before it is trained.
        live = [(root, gradient) for root, gradient in pairs if root.requires_grad]
        guard = NoForward(self.index) if self._linearizer.guarded else nullcontext()
        with torch.no_grad(), guard:
            if live:
                torch.autograd.backward([r for r, _ in live], [g for _, g in live])

    def _update(self, batch: int) -> Report:
        epoch = self._epochs[batch]
        self._epochs = {b: e for b, e in self._epochs.items() if b > batch}
        version = self.updater.version
        rate = self.updater.update(epoch)
        self._linearizer.updated()
        return Report(epoch, version, rate=rate)

    def _learn(self, batch: int) -> Report:
        if batch not in self._lessons:
            raise PacketError(
                f"stage {self.index}: no lesson waits for a target of batch {batch}"
            )
        received = self._after.receive(batch).values
        untaught = self._lessons.pop(batch)
        activation = untaught.activation
        with self._computing(batch, "learn"):
            loss = untaught.lesson(received)
        loss.backward(
            None if activation.share == 1 else torch.full_like(loss, activation.share)
        )
        epoch = activation.epoch
        value = _finite("loss", float(loss.detach()))
        norm = _finite("gradient norm", float(total_norm(self.signal_updater.gather())))
        version = self.signal_updater.version
        rate = self.signal_updater.update(epoch)
        return Report(epoch, version, loss=value, gradient_norm=norm, rate=rate)

    def _in_flight(self, forwarded: Forwarded) -> Tree:
        if forwarded.past is None:
            raise CheckpointError(
                f"stage {self.index}: batch {forwarded.activation.batch} is in flight, and "
                "what the layers were at its forward was not kept; build the trainer with "
                "resumable=True"
            )
        return {
            "activation": vars(forwarded.activation),
            "differentiable": forwarded.differentiable,
            "version": forwarded.version,
            "past": vars(forwarded.past),
        }

    def _forward_again(self, state: Tree) -> None:
        activation, past = Activation(**state["activation"]), Past(**state["past"])
        leaves = _leaves(activation)
        with self._computing(activation.batch, "forward"):
            graph = self._linearizer.again(self.module, leaves, past)
        differentiable, version = state["differentiable"], state["version"]
        self.pending.add(Forwarded(activation, leaves, graph, differentiable, version, past))

    @torch.no_grad()
    def _prepare_lesson(self, activation: Activation, output: Tree) -> None:
        """A lesson depends on nothing but what it is made from, so it can be made again."""
        unknown = (None,) * len(tensors(output))
        with self._computing(activation.batch, "backward"):
            error = self.signal.error(
                self.signal_network, self._loss, output, activation.targets, unknown
            )
        assert error.lesson is not None, "it was one of the same signal"
        self._lessons[activation.batch] = Untaught(error.lesson, activation, output)

    @contextmanager
    def _computing(self, batch: int, which: Pass) -> Iterator[None]:
        """The randomness and the precision of one pass."""
        with randomness(self._seed, self.index, batch, which, self._device), self._cast():
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


def _finite(what: str, value: float) -> float:
    """The value, unless it is NaN or infinite."""
    if not math.isfinite(value):
        raise NonFiniteError(
            f"the {what} became {value}; this stage's weights are those before this batch; "
            "lower the learning rate, warm up, or look at the batch"
        )
    return value

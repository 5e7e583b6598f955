"""Signals of a loss that a stage computes by itself: the network's, or an auxiliary head's."""

from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from hocket.errors import OptionError, raise_problems
from hocket.options.hints import wrong_fields
from hocket.options.ranges import Range, out_of_range
from hocket.signals.heads import (
    HeadKind,
    MeanOverTokens,
    build_head,
    pyramid_depth,
    spread_evenly,
)
from hocket.signals.losses import compute_loss
from hocket.signals.signal import BackwardRoots, Signal, SignalInput, StageShapes
from hocket.tree import Tree


@dataclass(frozen=True)
class Objective(Signal):
    """Loss of the network on the stage's output h, L(h, y): the signal of every last stage."""

    def backward_roots(self, network: nn.Module, inputs: SignalInput) -> BackwardRoots:
        """Return the loss of the output."""
        return BackwardRoots.of_loss(compute_loss(inputs.loss, inputs.output, inputs.targets))


@dataclass(frozen=True)
class Local(Signal):
    """Loss of an auxiliary head on the stage's output h, L(head(h), y).

    It is the loss of DGL (arXiv 1901.08164, algorithm 1).

    Attributes:
        head: Kind of auxiliary network: ``mlp-sr``, ``mlp``, ``cnn`` or ``aug``.
        width: Factor on the width of its hidden layers, above 0.
        depth: Number of hidden layers of its perceptron; 0 for a linear prediction. With
            ``aug`` it is the number of layers of the first stage's head; later heads have
            fewer.

    Raises:
        OptionError: Width or depth is out of range, or has no effect on this head.
    """

    head: HeadKind = "mlp-sr"
    width: float = 1.0
    depth: int = 3

    def __post_init__(self) -> None:
        problems = wrong_fields(self)
        problems += out_of_range(self, {"width": Range(above=0), "depth": Range(least=0)})
        if self.head == "cnn" and (self.width, self.depth) != (1, 3):
            problems.append(
                f"the head 'cnn' has no hidden layers that width={self.width!r} and "
                f"depth={self.depth!r} could change; leave them out, or use 'mlp'"
            )
        elif self.depth == 0 and self.width != 1:
            problems.append(
                f"depth=0 leaves no hidden layers that width={self.width!r} could change; "
                "leave one of them out"
            )
        raise_problems(OptionError, "a local loss cannot be built", problems)

    def build_network(self, shapes: StageShapes) -> nn.Module:
        """Build the head; it trains with the stage and is dropped afterwards; see the base.

        Its predictions have the shape of the network's output, so that the loss takes both.

        Raises:
            OptionError: A head cannot predict an output of this shape.
        """
        shape, output_shape = shapes.output, shapes.prediction
        if output_shape is None:
            raise OptionError(
                "heads call the loss with one tensor of predictions as the network's output, "
                "and that is not one tensor of floating point numbers; let the network return "
                "such a tensor, or choose a method that waits for gradients"
            )

        # The later layers that a head of kind `aug` has layers like.
        depth, later = self.depth, [each for each in shapes.later if len(each) == len(shape)]
        if self.head == "aug":
            depth = pyramid_depth(depth, shapes.place)
            later = [later[n] for n in spread_evenly(len(later), depth, shapes.before)]
        build = partial(build_head, self.head, width=self.width, depth=depth, later=later)

        # A prediction for each token, or one for each sample.
        if len(shape) == len(output_shape) == 2 and shape[0] == output_shape[0]:
            return build(shape, output_shape[1])
        if len(output_shape) > 1:
            raise OptionError(
                f"heads on a stage's output of shape {shape} predict (B, O), and the network's "
                f"output has shape (B, {', '.join(map(str, output_shape))}); cut elsewhere, or "
                "choose a method that waits for gradients"
            )
        if len(shape) == 2:
            mean = [each[1:] for each in later]
            head = build(shape[1:], *(output_shape or (1,)), later=mean)
            head = nn.Sequential(MeanOverTokens(), head)
        else:
            head = build(shape, *(output_shape or (1,)))
        return head if output_shape else nn.Sequential(head, nn.Flatten(0))

    def backward_roots(self, network: nn.Module, inputs: SignalInput) -> BackwardRoots:
        """Return the loss of the head's prediction."""
        prediction = self.predict(network, inputs.output)
        return BackwardRoots.of_loss(compute_loss(inputs.loss, prediction, inputs.targets))

    def predict(self, network: nn.Module, output: Tree) -> Tensor:
        """Return the head's prediction, of the shape of the network's output."""
        prediction: Tensor = network(output)
        return prediction

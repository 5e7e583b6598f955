"""Signal of a stage that learns from its own loss and from the losses of the next few stages.

It lies between greedy learning, whose gradients cross no edge, and back-propagation. Source:
overlapping local updates of Laskin et al., arXiv 2012.03837. Plain version:
``tests/reference/reach.py``.
"""

from dataclasses import dataclass, field

from torch import Tensor, nn

from hocket.errors import OptionError, raise_problems
from hocket.options.hints import wrong_fields
from hocket.options.ranges import Range, out_of_range
from hocket.signals.local import Local
from hocket.signals.losses import Loss
from hocket.signals.signal import BackwardRoots, Signal, SignalInput, StageShapes
from hocket.tree import Tree, tensors


@dataclass(frozen=True)
class Reach(Signal):
    """Losses L_k + ... + L_(k+reach) of stage k and the next ones, as far as there are any.

    The loss of the last stage is the network's. Each gradient may cross ``reach`` edges. Where
    losses of several stages come back to one, some gradients may go on from there and others
    may not, so they are differentiated and sent separately.

    Attributes:
        reach: Edges that the gradient of each loss crosses, at least 1.
        own: Signal of the stage's own loss, which waits for no gradient.

    Raises:
        OptionError: ``reach`` is below 1, or ``own`` is no such signal.
    """

    reach: int = 1
    own: Signal = field(default_factory=Local)

    def __post_init__(self) -> None:
        problems = wrong_fields(self) + out_of_range(self, {"reach": Range(least=1)})
        if not isinstance(self.own, Signal) or self.own.expects_answer:
            problems.append(f"own is {self.own!r}; give a local loss, such as Local()")
        raise_problems(OptionError, "gradients of this reach are impossible", problems)

    needs_gradient = True

    @property
    def needs_input(self) -> bool:
        """True if the stage's own loss depends on the input of the network."""
        return self.own.needs_input

    def build_network(self, shapes: StageShapes) -> nn.Module:
        """Build the network of the stage's own loss; see the base."""
        return self.own.build_network(shapes)

    def backward_roots(self, network: nn.Module, inputs: SignalInput) -> BackwardRoots:
        """Return the stage's own loss, and the outputs with the gradients that came back."""
        # The own loss goes farthest; no gradient crosses more edges than there are before.
        own = self.own.backward_roots(network, inputs)
        roots, gradients = [*own.roots], [*own.gradients]
        crossings = [min(self.reach, inputs.stage)] * len(roots)

        # Each group of gradients that came back may cross one edge less than the one before it.
        outputs, farthest = tensors(inputs.output), min(self.reach - 1, inputs.stage)
        for n, gradient in enumerate(inputs.received):
            if gradient is not None:
                roots.append(outputs[n % len(outputs)])
                gradients.append(gradient)
                crossings.append(farthest - n // len(outputs))
        return BackwardRoots(
            tuple(roots), tuple(gradients), own.loss, crossings=tuple(crossings)
        )

    def may_draw(self, loss: Loss) -> bool:
        """Return True if the stage's own signal may draw; see the base."""
        return self.own.may_draw(loss)

    def predict(self, network: nn.Module, output: Tree) -> Tensor | None:
        """Return the prediction of the stage's own signal; see the base."""
        return self.own.predict(network, output)

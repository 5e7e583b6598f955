"""The gradient of the network's loss, as the next stage sent it back."""

from dataclasses import dataclass

from torch import Tensor, nn

from hocket.errors import OptionError
from hocket.losses import Loss
from hocket.signals.signal import BackwardRoots
from hocket.tree import Tree, tensors


@dataclass(frozen=True)
class Delayed:
    """Differentiate along the gradient received, times ``shrink``.

    The factor acts at every edge that a gradient crosses, so stage k of K sees
    ``shrink ** (K-1-k)`` (gradient shrinking, beta; FDG, arXiv 1906.09108, section 3).

    Raises:
        OptionError: ``shrink`` is outside (0, 1].
    """

    shrink: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.shrink <= 1:
            raise OptionError(f"shrink is {self.shrink!r}; use a number in (0, 1]")

    needs_gradient = True
    learns_from_gradient = False

    def network(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Nothing to train: the gradient is used as it comes."""
        return nn.Identity()

    def backward_roots(
        self,
        network: nn.Module,
        loss: Loss,
        output: Tree,
        targets: Tree,
        received: tuple[Tensor | None, ...],
    ) -> BackwardRoots:
        """The outputs with the gradients received for them."""
        pairs = [
            (root, gradient if self.shrink == 1 else gradient * self.shrink)
            for root, gradient in zip(tensors(output), received, strict=True)
            if gradient is not None
        ]
        return BackwardRoots(
            tuple(root for root, _ in pairs), tuple(gradient for _, gradient in pairs)
        )

    def predict(self, network: nn.Module, output: Tree) -> Tensor | None:
        """Nothing: all it knows is a gradient."""
        return None

"""Weights without an optimizer."""

from collections.abc import Iterable, Sequence

from torch.optim import Optimizer

from hocket.errors import list_names, warn
from hocket.optim.factory import NamedParameters


class UntrainedWeights:
    """Weights of a stage that its optimizers do not have.

    Args:
        parameters: All weights of the stage, frozen ones as well, by names in the network.
        optimizers: Optimizers of the stage; None for one that is not needed.

    Attributes:
        names: Names of those that need a gradient.
    """

    def __init__(
        self, parameters: NamedParameters, optimizers: Iterable[Optimizer | None]
    ) -> None:
        groups = (group for each in optimizers if each for group in each.param_groups)
        trained = {parameter for group in groups for parameter in group["params"]}
        self.names = [name for name, p in parameters if p.requires_grad and p not in trained]
        self._frozen = [(name, p) for name, p in parameters if not p.requires_grad]

    def warn_of_unfrozen(self) -> None:
        """Warn of weights that were frozen when the stage was built, and have a gradient."""
        if names := [name for name, p in self._frozen if p.grad is not None]:
            self._frozen = [(name, p) for name, p in self._frozen if p.grad is None]
            warn(
                f"{describe_names(names)} were frozen when the optimizers were built, get "
                "gradients now, and stay as they are; build a new trainer after unfreezing"
            )


def describe_names(names: Sequence[str]) -> str:
    """Return the number of weights, and the names of the first ones.

    >>> describe_names(["a", "b"])
    '2 weights (a, b)'
    """
    return f"{len(names)} weights ({list_names(names)})"

"""Weights that get gradients, and that no optimizer has."""

from collections.abc import Iterable, Sequence

from torch import nn
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
        if not self._frozen:
            return
        if names := [name for name, p in self._frozen if p.grad is not None]:
            self._frozen = [(name, p) for name, p in self._frozen if p.grad is None]
            warn(
                f"{describe_names(names)} were frozen when the optimizers were built, get "
                "gradients now, and stay as they are; build a new trainer after unfreezing",
            )


def warn_of_untrained(names: Sequence[str]) -> None:
    """Warn of weights that need a gradient and have no optimizer.

    Args:
        names: Their names; there may be none.
    """
    if names:
        warn(
            f"{describe_names(names)} get gradients and have no optimizer, so they stay as "
            "they are; give them to the optimizer, or freeze them by requires_grad_(False); "
            "weights of a loss are trained if they are moved into the network",
        )


def loss_weights(loss: object, network: nn.Module) -> list[str]:
    """Return the names of a loss's weights that need a gradient and are not in the network."""
    owner = loss if isinstance(loss, nn.Module) else getattr(loss, "__self__", None)
    if not isinstance(owner, nn.Module):
        return []
    known = set(network.parameters())
    return [
        f"loss.{name}"
        for name, parameter in owner.named_parameters()
        if parameter.requires_grad and parameter not in known
    ]


def describe_names(names: Sequence[str]) -> str:
    """Return the number of weights, and the names of the first ones.

    >>> describe_names(["a", "b"])
    '2 weights (a, b)'
    """
    return f"{len(names)} weights ({list_names(names)})"

"""Gradients where none should be: on weights of other stages, or left from before a batch."""

from collections.abc import Iterable, Mapping
from itertools import chain

from torch import nn

from hocket.errors import OptionError, warn
from hocket.stage.update.untrained import describe_names


class ForeignWeights:
    """Weights of other stages; the first backward from a loss shows if it uses any of them.

    Their gradients would be lost among processes, where other stages are elsewhere.

    Args:
        names: Names of all parameters of the network.
        modules: Modules of the stage, whose parameters are its own.
    """

    def __init__(self, names: Mapping[nn.Parameter, str], *modules: nn.Module) -> None:
        own = set(chain.from_iterable(module.parameters() for module in modules))
        self._others = {name: p for p, name in names.items() if p not in own}

    def note(self) -> None:
        """Note the weights that have no gradient before the backward."""
        self._others = {name: p for name, p in self._others.items() if p.grad is None}

    def require_untouched(self, stage: int) -> None:
        """Refuse a backward that has given some of them a gradient; check no later one.

        Args:
            stage: Number of the stage, for the message.

        Raises:
            OptionError: There are such weights.
        """
        others, self._others = self._others, {}
        if used := [name for name, p in others.items() if p.grad is not None]:
            raise OptionError(
                f"stage {stage}: the loss uses {describe_names(used)} of other stages, whose "
                "gradients would be lost among processes; use the weight_decay of the "
                "optimizer, or return the penalty from the forward of the network"
            )

    def __bool__(self) -> bool:
        """Return True until a backward from a loss has been looked at."""
        return bool(self._others)


def drop_gradients(weights: Iterable[nn.Parameter], names: Mapping[nn.Parameter, str]) -> None:
    """Drop gradients that were left on weights between two batches, with a warning.

    Args:
        weights: Weights of a stage.
        names: Names of the parameters of the network.
    """
    left = [weight for weight in weights if weight.grad is not None]
    for weight in left:
        weight.grad = None
    shown = describe_names([names.get(weight, "of the signal") for weight in left])
    warn(
        f"{shown} had gradients that no batch of this training made, as after a backward of "
        "your own; they are dropped, as by zero_grad before a backward",
    )

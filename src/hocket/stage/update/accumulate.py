"""Accumulation of the gradients of several batches into one update."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from hocket.options.common_options import Reduce
from hocket.stage.update.clipping import Clipping


class GradientAccumulator:
    """Sum of the gradients since the last update, kept apart from ``grad`` of the parameters.

    A backward leaves the gradients of one batch in ``grad``; ``add`` moves them here, so that
    ``grad`` is empty between actions and the gradients of each batch can be looked at alone.

    Args:
        parameters: The parameters.
        reduce: ``mean`` or ``sum``: reduction of the gradients of several batches.
        clip: Limit of the norm of the gradient.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        reduce: Reduce,
        clip: Clipping = Clipping(),  # noqa: B008  # it is frozen
    ) -> None:
        self._parameters = parameters
        self._reduce = reduce
        self._clip = clip
        self._sums: list[Tensor | None] = [None] * len(parameters)
        self.count = 0  # batches since the last update

    def add(self) -> list[Tensor | None]:
        """Move the gradients of one batch out of ``grad``; return them as before clipping."""
        gradients = self.take()
        pairs = zip(self._sums, self._clip.clipped(gradients, "batch"), strict=True)
        self._sums = [
            gradient if total is None else total if gradient is None else total + gradient
            for total, gradient in pairs
        ]
        self.count += 1
        return gradients

    def take(self) -> list[Tensor | None]:
        """Take the gradients of one batch out of ``grad``, and return them."""
        gradients = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        return gradients

    def reduce(self) -> None:
        """Put the mean or the sum into ``grad`` and begin again with none.

        What was accumulated for a weight that is frozen by now is discarded.
        """
        pairs = zip(self._parameters, self._sums, strict=True)
        sums = [total if parameter.requires_grad else None for parameter, total in pairs]
        if self._reduce == "mean" and self.count > 1:
            # Not in place: a sum of one gradient is that gradient, which the caller may hold.
            sums = [None if s is None else s / self.count for s in sums]
        clipped = self._clip.clipped(sums, "update")
        for parameter, total in zip(self._parameters, clipped, strict=True):
            parameter.grad = total
        self._sums = [None] * len(self._parameters)
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the sums since the last update, and the number of batches in them."""
        return {"sums": list(self._sums), "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of an accumulator of the same parameters."""
        self._sums = [
            None if total is None else total.to(parameter.device)
            for total, parameter in zip(state["sums"], self._parameters, strict=True)
        ]
        self.count = state["count"]

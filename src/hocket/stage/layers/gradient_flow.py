"""Knowledge of the tensors of a stage's output that a gradient flows through."""

from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias

from torch import Tensor

from hocket.stage.layers.module_tensors import ModuleTensors

FindFlow: TypeAlias = Callable[[], list[bool]]
"""Finds out for each tensor of an output whether a gradient flows through it."""


class GradientFlow:
    """Finds out once which tensors of an output a gradient flows through.

    It does so again only if other inputs or weights need gradients, for some stages have to
    forward once more for that.

    Args:
        tensors: Weights and buffers of the stage.
    """

    def __init__(self, tensors: ModuleTensors) -> None:
        self._tensors = tensors
        self._through: list[bool] = []
        self._known_for: Hashable = None  # everything that it depends on

    def through(
        self,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor],
        find: FindFlow,
    ) -> list[bool]:
        """Return for each tensor of an output whether a gradient flows through it.

        Args:
            outputs: Tensors of the output.
            inputs: Tensors of the input.
            find: Finds it out.
        """
        sources = (*inputs, *self._tensors.parameters)
        depends_on = (len(outputs), *[tensor.requires_grad for tensor in sources])
        if self._known_for != depends_on:
            self._known_for = depends_on
            self._through = find()
        return self._through


def find_tables(outputs: Sequence[Tensor], find: FindFlow) -> list[bool]:
    """Return for each tensor of an output whether it is a table, such as one of positions.

    No gradient flows through a table, but through another tensor of the output. The next stage
    takes it as it would in the uncut network, without a gradient, for PyTorch may choose its
    kernels by that. In a stage that learns nothing, activations cannot be told from tables.

    Args:
        outputs: Tensors of the output.
        find: Finds out through which of them a gradient flows.
    """
    if len(outputs) == 1:
        return [False]
    flows = find()
    return [any(flows) and not learned for learned in flows]

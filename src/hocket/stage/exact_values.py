"""Tensors of a stage's output that no codec may change, as they are no activations."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor, nn

from hocket.partition.partial_module import PartialModule
from hocket.stage.gradient_flow import FindFlow, GradientFlow
from hocket.stage.module_tensors import ModuleTensors
from hocket.stage.parts import StageParts
from hocket.stage.setup import Setup
from hocket.transport.codecs import Exact


class ExactValues(Protocol):
    """Decides which tensors of an output have to arrive exactly."""

    def tables(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], find_flow: FindFlow
    ) -> list[bool]:
        """Return for each tensor of an output whether it is a table or a mask.

        No gradient flows through those, and their gradients are not asked for.

        Args:
            outputs: Tensors of the output.
            inputs: Tensors of the input.
            find_flow: Finds out through which tensors of the output a gradient flows.
        """

    def among(self, tables: Sequence[bool]) -> tuple[bool, ...]:
        """Return for each tensor of an output whether it has to arrive exactly; () for none.

        Args:
            tables: For each of them, True for a table or a mask.
        """


class NoneExact:
    """Decision for stages without a codec, or without a next stage."""

    def tables(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], find_flow: FindFlow
    ) -> list[bool]:
        """Return False for each tensor.

        Args:
            outputs: Tensors of the output.
            inputs: Not used.
            find_flow: Not used.
        """
        return [False] * len(outputs)

    def among(self, tables: Sequence[bool]) -> tuple[bool, ...]:
        """Return ()."""
        return ()


class AllButActivations:
    """Decision for stages with a codec, which may encode activations and nothing else.

    Args:
        module: Layers of the stage.
        tensors: Its weights and buffers.
    """

    def __init__(self, module: nn.Module, tensors: ModuleTensors) -> None:
        self._flow = GradientFlow(tensors)
        # Weights that stages share are behind everything else.
        self._weights = len(module.sent_weights) if isinstance(module, PartialModule) else 0

    def tables(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], find_flow: FindFlow
    ) -> list[bool]:
        """Return True for each tensor without a gradient, if another one has a gradient.

        Args:
            outputs: Tensors of the output.
            inputs: Tensors of the input.
            find_flow: Finds out through which tensors of the output a gradient flows.
        """
        flows = self._flow.through(outputs, inputs, find_flow)
        # In a stage that learns nothing, nobody can tell activations from tables.
        return [any(flows) and not learned for learned in flows]

    def among(self, tables: Sequence[bool]) -> tuple[bool, ...]:
        """Return True for tables, and for weights on their way to a stage that shares them."""
        first_weight = len(tables) - self._weights
        return tuple(table or n >= first_weight for n, table in enumerate(tables))


def build_exact_values(setup: Setup, parts: StageParts, tensors: ModuleTensors) -> ExactValues:
    """Return the decision for a stage.

    Args:
        setup: Options that all stages share.
        parts: Parts of the stage.
        tensors: Its weights and buffers.
    """
    if setup.codec == Exact() or parts.index == parts.count - 1:
        return NoneExact()
    return AllButActivations(parts.module, tensors)

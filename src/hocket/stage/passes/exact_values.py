"""Tensors of a stage's output that no codec may change, as they are no activations."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from hocket.codecs import Exact
from hocket.partition.parts.partial_module import PartialModule
from hocket.stage.parts import StageParts
from hocket.stage.setup import Setup

FindExact: TypeAlias = Callable[[Sequence[bool]], tuple[bool, ...]]
"""Tells of each tensor of an output, which may be a table, whether it has to arrive exactly.

An empty tuple stands for a stage that encodes nothing.
"""


def build_exact_values(setup: Setup, parts: StageParts) -> FindExact:
    """Return the function that finds the exact values of a stage's output.

    Args:
        setup: Options that all stages share.
        parts: Parts of the stage.
    """
    if setup.codec == Exact() or parts.index == parts.count - 1:
        return _nothing_is_encoded
    module = parts.module
    weights = len(module.sent_weights) if isinstance(module, PartialModule) else 0
    return partial(_all_but_activations, weights)


def _nothing_is_encoded(tables: Sequence[bool]) -> tuple[bool, ...]:
    return ()


def _all_but_activations(weights: int, tables: Sequence[bool]) -> tuple[bool, ...]:
    """Return True for tables, and for weights on their way to a stage that shares them.

    Args:
        weights: Number of these weights, which are behind everything else.
        tables: For each tensor of the output, True if it is a table.
    """
    first_weight = len(tables) - weights
    return tuple(table or n >= first_weight for n, table in enumerate(tables))

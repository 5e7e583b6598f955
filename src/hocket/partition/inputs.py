"""Inputs of a network as a tree of tensors, or refused with an explanation."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from hocket.errors import DataError
from hocket.tree import Tree, tensors


def as_tree(values: Tree) -> Tree:
    """Return values in which a mapping of any class, such as a BatchEncoding, is a dict."""
    if isinstance(values, Tensor):  # as nearly always, and in a fraction of the time
        return values
    return dict(values) if isinstance(values, Mapping) else values


def as_inputs(values: Tree, where: str) -> Tree:
    """Return inputs of a network as a tree of tensors.

    Args:
        values: The inputs.
        where: Subject of the message of an error.

    Raises:
        DataError: There is no tensor among the inputs, or one that is not dense.
    """
    inputs = as_tree(values)
    if not tensors(inputs):
        raise DataError(
            f"{where} has no tensors as inputs: it has {describe_value(values)}; convert "
            "other arrays with torch.as_tensor, and leave out batches without inputs"
        )
    if not isinstance(inputs, Tensor) and pytree.tree_any(_is_packed, inputs, _is_packed):
        raise DataError(
            f"{where} has a PackedSequence among its inputs; give the padded tensor and the "
            "lengths, and pack them in a module of the network"
        )
    for value in tensors(inputs):
        if value.layout != torch.strided or value.is_nested:
            raise DataError(
                f"{where} has a sparse or nested tensor among its inputs; give its indices and "
                "values as dense tensors, or let a module keep it as a buffer"
            )
    return inputs


def _is_packed(value: object) -> bool:
    return isinstance(value, PackedSequence)


def describe_value(value: object) -> str:
    """Return a text with the type of a value, and its shape, its size or its keys."""
    kind = type(value).__name__
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"a {kind} with the keys {', '.join(map(repr, value)) or 'none'}"
    if isinstance(value, tuple | list):
        return f"a {kind} of {len(value)} values"
    return f"a {kind}"

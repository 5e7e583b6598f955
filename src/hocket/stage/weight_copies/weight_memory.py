"""The memory of weights: copies of it, and views of copies as the weights see it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hocket.errors import OptionError
from hocket.stage.weight_copies.weight_view import WeightView

Copies = Sequence[torch.UntypedStorage]
"""A copy of the memory of each weight that `distinct_in_memory` returns."""


def distinct_in_memory(weights: Sequence[Tensor]) -> list[Tensor]:
    """Return the weights, and of those that share their memory only one."""
    return list({w.untyped_storage().data_ptr(): w for w in weights}.values())


def repeated_views(weights: Sequence[Tensor]) -> list[int]:
    """Return the numbers of the weights that are the same elements as an earlier one.

    >>> memory = torch.ones(4)
    >>> repeated_views([memory[:2], memory[2:], memory[:2]])
    [2]
    """
    seen, repeated = set(), []
    for number, weight in enumerate(weights):
        place = weight.data_ptr(), weight.size(), weight.stride()
        if place in seen:
            repeated.append(number)
        seen.add(place)
    return repeated


def require_own_memory(weights: Sequence[Tensor], stage: int) -> None:
    """Refuse weights whose memory has other things in it, such as weights of other stages.

    Args:
        weights: Weights of a stage.
        stage: Number of the stage, for the message.

    Raises:
        OptionError: There is such a weight.
    """
    used: dict[int, int] = {}
    for weight in weights:
        place = weight.untyped_storage().data_ptr()
        used[place] = used.get(place, 0) + weight.nbytes
    for weight in weights:
        memory = weight.untyped_storage()
        if used[memory.data_ptr()] < memory.nbytes():
            raise OptionError(
                f"stage {stage}: a weight of shape {tuple(weight.shape)} is a part of a larger "
                "memory, into which this method would copy older weights; give each weight a "
                "memory of its own: weight.data = weight.data.clone()"
            )


def layouts(weights: Sequence[Tensor]) -> list[tuple[tuple[int, ...], int, int]]:
    """Return strides, offset and bytes of memory of each weight."""
    return [
        (weight.stride(), int(weight.storage_offset()), weight.untyped_storage().nbytes())
        for weight in weights
    ]


def copy_memory(weights: Sequence[Tensor]) -> list[torch.UntypedStorage]:
    """Return a copy of the memory of each weight."""
    return [weight.untyped_storage().clone() for weight in weights]


def fill_memory(weights: Sequence[Tensor], copies: Copies) -> None:
    """Copy into the memory of the weights, without a new version for autograd.

    Graphs in flight have copies, and optimizers must not notice.

    Args:
        weights: Weights with distinct memory.
        copies: What to copy.
    """
    for weight, copy in zip(weights, copies, strict=True):
        weight.untyped_storage().copy_(copy)


def view_copies(
    parameters: Sequence[Tensor], weights: Sequence[Tensor], copies: Copies
) -> list[Tensor]:
    """Return for each parameter a tensor of its shape in a copy of its memory.

    Args:
        parameters: The parameters.
        weights: Parameters with distinct memory.
        copies: A copy of the memory of each.
    """
    pairs = zip(weights, copies, strict=True)
    by_memory = {weight.untyped_storage().data_ptr(): copy for weight, copy in pairs}
    return [
        WeightView.like(parameter).within(by_memory[parameter.untyped_storage().data_ptr()])
        for parameter in parameters
    ]


def to_tensors(weights: Sequence[Tensor], copies: Copies) -> list[Tensor]:
    """Return copies as flat tensors, for a checkpoint.

    Args:
        weights: Weights with distinct memory.
        copies: A copy of the memory of each.
    """
    return [
        weight.new_empty(0).detach().set_(copy)
        for copy, weight in zip(copies, weights, strict=True)
    ]


def from_tensors(
    weights: Sequence[Tensor], tensors: Sequence[Tensor]
) -> list[torch.UntypedStorage]:
    """Return copies from the flat tensors of a checkpoint.

    Args:
        weights: Weights with distinct memory.
        tensors: A flat tensor for each.
    """
    return [
        tensor.to(weight.device).clone().untyped_storage()
        for tensor, weight in zip(tensors, weights, strict=True)
    ]

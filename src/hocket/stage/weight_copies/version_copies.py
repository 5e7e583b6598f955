"""Copies of the memory of weights, one for each version of each weight, which graphs share."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from hocket.stage.weight_copies.weight_view import WeightView


class VersionCopies:
    """Copies of the present weights of a stage, each made when it is first asked for."""

    def __init__(self) -> None:
        self._copies: dict[tuple[int, int], torch.UntypedStorage] = {}
        self._whole: dict[tuple[int, int], Tensor] = {}  # views of them as the weights are

    def forget(self) -> None:
        """Make new copies from now on; graphs in flight hold on to the old ones."""
        self._copies, self._whole = {}, {}

    def whole(self, weight: Tensor) -> Tensor:
        """Return a weight as it is now, as a new tensor in a copy of its memory.

        Args:
            weight: The weight (...).
        """
        key = version_key(weight)
        if key not in self._whole:
            self._whole[key] = self._copy(weight.detach(), key)
        return self._whole[key].detach()

    def view(self, tensor: Tensor, weight: Tensor) -> Tensor:
        """Return a tensor as it is now, in a copy of the memory of its weight.

        Args:
            tensor: The tensor (...), which shares memory with the weight.
            weight: The weight.
        """
        if _layout(tensor) == _layout(weight):
            return self.whole(weight)
        return WeightView.like(tensor).within(self._memory(weight, version_key(weight)))

    def _copy(self, weight: Tensor, key: tuple[int, int]) -> Tensor:
        """Return a weight in a copy of its memory, which is made if there is none.

        Args:
            weight: The weight (...), detached.
            key: Its place and version.
        """
        if key not in self._copies:
            copy = weight.clone()  # the shortest way, if all of the memory is copied as it is
            if (
                copy.stride() == weight.stride()
                and copy.nbytes == weight.untyped_storage().nbytes()
            ):
                self._copies[key] = copy.untyped_storage()
                return copy
        return WeightView.like(weight).within(self._memory(weight, key))

    def _memory(self, weight: Tensor, key: tuple[int, int]) -> torch.UntypedStorage:
        """Return the copy of the memory of a weight, which is made if there is none.

        Args:
            weight: The weight (...).
            key: Its place and version.
        """
        if key not in self._copies:
            self._copies[key] = weight.untyped_storage().clone()
        return self._copies[key]

    def copy_weights(self, weights: Sequence[Tensor]) -> list[torch.UntypedStorage]:
        """Return copies of the memory of the weights as they are, which graphs share.

        Args:
            weights: Weights of the stage.
        """
        for weight in weights:
            self.whole(weight)
        return [self._copies[version_key(weight)] for weight in weights]

    @contextmanager
    def sharing(
        self, weights: Sequence[Tensor], copies: Sequence[torch.UntypedStorage]
    ) -> Iterator[None]:
        """Context manager in which graphs keep these copies instead of the weights.

        Args:
            weights: Weights of the stage, which have the values of the copies.
            copies: A copy of the memory of each weight.
        """
        own = self._copies, self._whole
        self._copies = dict(zip(map(version_key, weights), copies, strict=True))
        self._whole = {}
        try:
            yield
        finally:
            self._copies, self._whole = own


def _layout(tensor: Tensor) -> tuple[object, ...]:
    """Return what two tensors of the same memory have in common if they are the same one."""
    flags = tensor.is_conj(), tensor.is_neg()
    return tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset(), flags


def version_key(weight: Tensor) -> tuple[int, int]:
    """Return the place of a weight's memory, and its version.

    The version catches a change from outside, such as load_state_dict.
    """
    return weight.untyped_storage().data_ptr(), weight._version

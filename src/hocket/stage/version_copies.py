"""Copies of the memory of weights, one for each version of each weight, which graphs share."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from hocket.stage.weight_view import WeightView


class VersionCopies:
    """Copies of the present weights of a stage, each made when it is first asked for."""

    def __init__(self) -> None:
        self._copies: dict[tuple[int, int], torch.UntypedStorage] = {}
        self._whole: dict[tuple[int, int], Tensor] = {}  # views of them as the weights are

    def forget(self) -> None:
        """Make new copies from now on; graphs in flight hold on to the old ones."""
        self._copies, self._whole = {}, {}

    def whole(self, weight: Tensor) -> Tensor:
        """Return a weight as it is now, in a copy of its memory, as a tensor of its own.

        Args:
            weight: The weight (...).
        """
        key = _version_key(weight)
        if key not in self._whole:
            present = weight.detach()
            if key in self._copies or present.nbytes != weight.untyped_storage().nbytes():
                self._whole[key] = self.view(present, weight)
            else:  # the same by the shortest way
                self._whole[key] = present.clone()
                self._copies[key] = self._whole[key].untyped_storage()
        return self._whole[key].detach()

    def view(self, tensor: Tensor, weight: Tensor) -> Tensor:
        """Return a tensor as it is now, in a copy of the memory of its weight.

        Args:
            tensor: The tensor (...), which shares memory with the weight.
            weight: The weight.
        """
        key = _version_key(weight)
        if key not in self._copies:
            self._copies[key] = weight.untyped_storage().clone()
        return WeightView.like(tensor, partial(self._copies.__getitem__, key)).tensor()

    def copy_weights(self, weights: Sequence[Tensor]) -> list[torch.UntypedStorage]:
        """Return copies of the memory of the weights as they are, which graphs share.

        Args:
            weights: Weights of the stage.
        """
        for weight in weights:
            self.view(weight.detach(), weight)
        return [self._copies[_version_key(weight)] for weight in weights]

    @contextmanager
    def sharing(
        self, weights: Sequence[Tensor], copies: Sequence[torch.UntypedStorage]
    ) -> Iterator[None]:
        """Context manager in which graphs keep these copies in the place of the weights.

        Args:
            weights: Weights of the stage, which have the values of the copies.
            copies: A copy of the memory of each weight.
        """
        own = self._copies, self._whole
        self._copies = dict(zip(map(_version_key, weights), copies, strict=True))
        self._whole = {}
        try:
            yield
        finally:
            self._copies, self._whole = own


def _version_key(weight: Tensor) -> tuple[int, int]:
    """Return the place of a weight's memory, and its version.

    The version catches a change from outside, such as load_state_dict.
    """
    return weight.untyped_storage().data_ptr(), weight._version

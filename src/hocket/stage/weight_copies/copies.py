"""Copies of weights, one for each version that graphs need.

Graphs share the copy of a version of a weight. Views show it as the weights see their memory.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from hocket.errors import LinearizeError


def view_like(tensor: Tensor) -> Callable[[torch.UntypedStorage], Tensor]:
    """Return a function that builds a view (...) like this one in a copy of its memory."""
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    offset, size, stride = int(tensor.storage_offset()), tensor.size(), tensor.stride()
    conjugated, negated = tensor.is_conj(), tensor.is_neg()

    def build(memory: torch.UntypedStorage) -> Tensor:
        view = empty.set_(memory, offset, size, stride)
        view = view.conj() if conjugated else view
        return torch._neg_view(view) if negated else view

    return build


def live_view(tensor: Tensor, weight: Tensor) -> Callable[[], Tensor]:
    """Return a function that builds a view (...) of a weight's memory at the time of the call.

    Args:
        tensor: The view, as it is in the forward.
        weight: The weight, whose memory the optimizer may replace.
    """
    view = view_like(tensor)
    layout = weight.stride(), int(weight.storage_offset())

    def build() -> Tensor:
        present = weight.stride(), weight.storage_offset()
        if present != layout:
            raise LinearizeError(
                f"a weight of shape {tuple(weight.shape)} was replaced by one with strides and "
                f"offset {present}, wanted {layout}; update it in place, or use "
                "linearize='stash'"
            )
        return view(weight.untyped_storage())

    return build


class VersionCopies:
    """Copies of the present weights of a stage, each made when it is first asked for."""

    def __init__(self) -> None:
        self._copies: dict[tuple[int, int], torch.UntypedStorage] = {}
        self._whole: dict[tuple[int, int, int], Tensor] = {}  # views of them as the weights are

    def forget(self) -> None:
        """Make new copies from now on; graphs in flight hold on to the old ones."""
        self._copies, self._whole = {}, {}

    def whole(self, weight: Tensor) -> Tensor:
        """Return a weight (...) as it is now, as a new tensor in a copy of its memory."""
        key = id(weight), *version_key(weight)  # others may be in the same memory
        if key not in self._whole:
            self._whole[key] = self._copy(weight)
        return self._whole[key].detach()

    def view(self, tensor: Tensor, weight: Tensor) -> Tensor:
        """Return a tensor (...) as it is now, in a copy of the memory of its weight."""
        whole = self.whole(weight)
        if _layout(tensor) == _layout(weight):
            return whole
        return view_like(tensor)(self._copies[version_key(weight)])

    def _copy(self, weight: Tensor) -> Tensor:
        """Return a weight (...) in the copy of its memory, which is made if there is none."""
        key = version_key(weight)
        if key not in self._copies:
            # A clone is the shortest way, if all of the memory is copied as it is.
            copy = weight.detach().clone()
            if copy.stride() == weight.stride() and _same_size(copy, weight):
                self._copies[key] = copy.untyped_storage()
                return copy
            self._copies[key] = weight.untyped_storage().clone()
        return view_like(weight)(self._copies[key])

    @contextmanager
    def sharing(self, weights: Sequence[Tensor], copies: Sequence[Tensor]) -> Iterator[None]:
        """Context manager in which graphs keep these copies instead of the newest weights.

        Args:
            weights: Weights of the stage, which get the values of the copies.
            copies: A copy of each weight; a graph copies for itself what is laid out in another
                way. Empty if there are none.
        """
        own = self._copies, self._whole
        self._copies, self._whole = {}, {}
        for weight, copy in zip(weights, copies, strict=bool(copies)):
            if _layout(copy) == _layout(weight) and _same_size(copy, weight):
                key = version_key(weight)
                self._copies[key] = copy.untyped_storage()
                self._whole[id(weight), *key] = copy
        try:
            yield
        finally:
            self._copies, self._whole = own


def _same_size(copy: Tensor, weight: Tensor) -> bool:
    """Return True if the memory of both has the same number of bytes."""
    return copy.untyped_storage().nbytes() == weight.untyped_storage().nbytes()


def _layout(tensor: Tensor) -> tuple[object, ...]:
    """Return all in which two views of one memory can differ."""
    flags = tensor.is_conj(), tensor.is_neg()
    return tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset(), flags


def version_key(weight: Tensor) -> tuple[int, int]:
    """Return the place of a weight's memory, and its version.

    The version catches a change from outside, such as load_state_dict.
    """
    return weight.untyped_storage().data_ptr(), weight._version


def repeated_views(weights: Sequence[Tensor]) -> list[int]:
    """Return the numbers of the weights that are the same elements as an earlier one.

    >>> memory = torch.ones(4)
    >>> repeated_views([memory[:2], memory[2:], memory[:2]])
    [2]
    """
    first: dict[object, int] = {}
    places = [(weight.data_ptr(), weight.size(), weight.stride()) for weight in weights]
    return [n for n, place in enumerate(places) if first.setdefault(place, n) < n]

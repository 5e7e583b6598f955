"""Copies of the memory of weights: for each version that graphs need, and to put in place.

Graphs share one copy of each version of each weight. Views show a copy as the weights see it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TypeAlias

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
    """Return a function that builds a view (...) of what the memory of a weight is then.

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
            memory = self._memory(weight, key)
            if key not in self._whole:
                self._whole[key] = view_like(weight)(memory)
        return self._whole[key].detach()

    def view(self, tensor: Tensor, weight: Tensor) -> Tensor:
        """Return a tensor as it is now, in a copy of the memory of its weight.

        Args:
            tensor: The tensor (...), which shares memory with the weight.
            weight: The weight.
        """
        if _layout(tensor) == _layout(weight):
            return self.whole(weight)
        return view_like(tensor)(self._memory(weight, version_key(weight)))

    def _memory(self, weight: Tensor, key: tuple[int, int]) -> torch.UntypedStorage:
        """Return the copy of the memory of a weight, which is made if there is none.

        Args:
            weight: The weight (...).
            key: Its place and version.
        """
        if key not in self._copies:
            # A clone is the shortest way, if all of the memory is copied as it is.
            copy = weight.detach().clone()
            whole = copy.nbytes == weight.untyped_storage().nbytes()
            if whole and copy.stride() == weight.stride():
                self._copies[key] = copy.untyped_storage()
                self._whole[key] = copy
            else:
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


Copies: TypeAlias = Sequence[torch.UntypedStorage]
"""A copy of each memory of the weights of a stage."""


class WeightMemory:
    """Memory of the weights of a stage, of which copies are made and put in place.

    Args:
        parameters: The weights; some may share their memory.

    Attributes:
        weights: One weight for each memory.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self.weights = list({w.untyped_storage().data_ptr(): w for w in parameters}.values())

    def layouts(self) -> list[tuple[tuple[int, ...], int, int]]:
        """Return strides, offset and bytes of memory of each weight."""
        return [
            (weight.stride(), int(weight.storage_offset()), weight.untyped_storage().nbytes())
            for weight in self.weights
        ]

    def copy(self) -> Copies:
        """Return a copy of all memory."""
        return [weight.untyped_storage().clone() for weight in self.weights]

    @contextmanager
    def replaced(self, copies: Copies, shared: VersionCopies | None) -> Iterator[None]:
        """Context manager in which copies are in place of the weights, also in new graphs.

        Autograd counts no new version: graphs in flight have copies, and optimizers must not
        notice.

        Args:
            copies: What is in place.
            shared: Lets new graphs keep them; None if graphs keep no copies.
        """
        newest = self.copy()  # also what was edited through `.data`
        try:
            self._fill(copies)
            with nullcontext() if shared is None else shared.sharing(self.weights, copies):
                yield
        finally:
            self._fill(newest)

    def _fill(self, copies: Copies) -> None:
        for weight, copy in zip(self.weights, copies, strict=True):
            weight.untyped_storage().copy_(copy)

    def views(self, copies: Copies) -> list[Tensor]:
        """Return for each parameter a tensor of its shape in a copy of its memory."""
        pairs = zip(self.weights, copies, strict=True)
        by_memory = {weight.untyped_storage().data_ptr(): copy for weight, copy in pairs}
        return [
            view_like(parameter)(by_memory[parameter.untyped_storage().data_ptr()])
            for parameter in self._parameters
        ]

    def to_tensors(self, copies: Copies) -> list[Tensor]:
        """Return copies as flat tensors, for a checkpoint."""
        return [
            weight.new_empty(0).detach().set_(copy)
            for copy, weight in zip(copies, self.weights, strict=True)
        ]

    def from_tensors(self, tensors: Sequence[Tensor]) -> Copies:
        """Return copies from the flat tensors of a checkpoint."""
        return [
            tensor.to(weight.device).clone().untyped_storage()
            for tensor, weight in zip(tensors, self.weights, strict=True)
        ]


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

"""Views of the memory that a weight has at the time of the backward, for ``live``."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hocket.errors import LinearizeError


@dataclass(frozen=True)
class WeightView:
    """A view of the memory of weights, built when it is asked for.

    Attributes:
        get_storage: Returns the memory.
        empty: A tensor of the type and on the device of the view.
        size: Its shape.
        stride: Its strides.
        offset: Place of its first number in the memory.
        conjugated: True if it is the conjugate of the numbers there.
        negated: True if it is the negative of them, as the imaginary part of a conjugate.
    """

    get_storage: Callable[[], torch.UntypedStorage]
    empty: Tensor
    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    conjugated: bool
    negated: bool

    @staticmethod
    def like(tensor: Tensor, get_storage: Callable[[], torch.UntypedStorage]) -> "WeightView":
        """Describe a tensor as a view of some memory.

        Args:
            tensor: The tensor (...).
            get_storage: Returns the memory that it is to be a view of.
        """
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        offset = int(tensor.storage_offset())
        flags = tensor.is_conj(), tensor.is_neg()
        return WeightView(get_storage, empty, tensor.size(), tensor.stride(), offset, *flags)

    def tensor(self) -> Tensor:
        """Return the view (...)."""
        view = self.empty.set_(self.get_storage(), self.offset, self.size, self.stride)
        view = view.conj() if self.conjugated else view
        return torch._neg_view(view) if self.negated else view


@dataclass(frozen=True)
class LiveMemory:
    """Memory that a weight has in the backward, also if the optimizer has replaced it."""

    weight: Tensor
    stride: tuple[int, ...]
    offset: int

    def storage(self) -> torch.UntypedStorage:
        """Return the present memory.

        Raises:
            LinearizeError: The weight is laid out in another way than in the forward.
        """
        layout = self.weight.stride(), self.weight.storage_offset()
        if layout != (self.stride, self.offset):
            raise LinearizeError(
                f"a weight of shape {tuple(self.weight.shape)} was replaced by one with "
                f"strides and offset {layout}, wanted {(self.stride, self.offset)}; update it "
                "in place, or use linearize='stash'"
            )
        return self.weight.untyped_storage()

"""Views of the memory that a weight has at the time of the backward, for ``live``."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hocket.errors import LinearizeError


@dataclass(frozen=True)
class WeightView:
    """A view of the memory of weights, built when the backward asks for it."""

    get_storage: Callable[[], torch.UntypedStorage]
    empty: Tensor
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    @staticmethod
    def like(tensor: Tensor, get_storage: Callable[[], torch.UntypedStorage]) -> "WeightView":
        """Describe a tensor as a view of some memory.

        Args:
            tensor: The tensor (...).
            get_storage: Returns the memory that it is to be a view of.
        """
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        offset = int(tensor.storage_offset())
        return WeightView(get_storage, empty, tensor.size(), tensor.stride(), offset)

    def tensor(self) -> Tensor:
        """Return the view (...)."""
        return self.empty.set_(self.get_storage(), self.offset, self.size, self.stride)


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

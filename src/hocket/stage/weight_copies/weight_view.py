"""Views of the memory of weights: of copies of it, or of what it is in the backward."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hocket.errors import LinearizeError


@dataclass(frozen=True)
class WeightView:
    """Description of a view of the memory of a weight, to be built in any copy of it.

    Attributes:
        empty: A tensor of the type and on the device of the view.
        size: Its shape.
        stride: Its strides.
        offset: Place of its first number in the memory.
        conjugated: True if it is the conjugate of the numbers there.
        negated: True if it is the negative of them, as the imaginary part of a conjugate.
    """

    empty: Tensor
    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    conjugated: bool
    negated: bool

    @staticmethod
    def like(tensor: Tensor) -> "WeightView":
        """Describe a tensor (...) as a view of its memory."""
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        offset = int(tensor.storage_offset())
        flags = tensor.is_conj(), tensor.is_neg()
        return WeightView(empty, tensor.size(), tensor.stride(), offset, *flags)

    def within(self, memory: torch.UntypedStorage) -> Tensor:
        """Return the view (...) of this memory."""
        view = self.empty.set_(memory, self.offset, self.size, self.stride)
        view = view.conj() if self.conjugated else view
        return torch._neg_view(view) if self.negated else view


@dataclass(frozen=True)
class LiveView:
    """View of the memory of a weight in the backward, also if the optimizer has replaced it.

    Attributes:
        view: The view.
        weight: The weight.
        stride: Strides of the weight in the forward.
        offset: Place of its first number in its memory in the forward.
    """

    view: WeightView
    weight: Tensor
    stride: tuple[int, ...]
    offset: int

    def tensor(self) -> Tensor:
        """Return the view (...) of the present memory.

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
        return self.view.within(self.weight.untyped_storage())

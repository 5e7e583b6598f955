"""How many bytes of tensors are alive, and how many have been at most."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hocket.tree import tensors


@final
class LiveTensorMemory(TorchDispatchMode):
    """Counts the memory of tensors that are met inside, each once, until it is freed.

    What kernels take for themselves and give back is not seen.

    Args:
        outside: Tensors whose memory does not count.

    Attributes:
        now: Bytes alive.
        peak: The most that have been alive at a time.

    >>> with Living() as living:
    ...     a = torch.ones(4) + torch.ones(4)
    >>> living.now, living.peak
    (16, 48)
    """

    def __init__(self, *outside: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.now = 0
        self.peak = 0
        self._outside = [tensor.untyped_storage() for tensor in outside]
        self._known = {storage._cdata for storage in self._outside}

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Do what is asked, and count what came of it."""
        output = func(*args, **(kwargs or {}))
        # Arguments too: memory can be taken, and filled, without a tensor to show for it.
        for tensor in tensors((args, kwargs, output)):
            self._count(tensor.untyped_storage())
        return output

    def _count(self, storage: torch.UntypedStorage) -> None:
        place = storage._cdata
        if place in self._known or storage.device.type == "meta":
            return
        self._known.add(place)
        size = storage.nbytes()
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, place, size)

    def _free(self, place: int, size: int) -> None:
        self._known.discard(place)
        self.now -= size

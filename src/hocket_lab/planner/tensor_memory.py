"""Memory of live tensors, counted in bytes: the current amount and the peak."""

import weakref
from typing import Any, final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hocket.tree import tensors


@final
class LiveTensorMemory(TorchDispatchMode):
    """Context manager that counts the memory of all tensors used in it, until they are freed.

    Memory that is shared by several tensors counts once. Temporary memory inside a kernel is
    not counted.

    Args:
        excluded: Tensors whose memory does not count.

    Attributes:
        live_bytes: Bytes of the tensors that are alive.
        peak_bytes: Maximum of ``live_bytes`` so far.

    >>> with LiveTensorMemory() as memory:
    ...     a = torch.ones(4) + torch.ones(4)
    >>> memory.live_bytes, memory.peak_bytes
    (16, 48)
    """

    def __init__(self, *excluded: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.live_bytes = 0
        self.peak_bytes = 0
        self._excluded = [tensor.untyped_storage() for tensor in excluded]
        self._known = {storage._cdata for storage in self._excluded}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call the operator, and count the tensors that it reads and returns."""
        output = func(*args, **(kwargs or {}))
        # Arguments too: a storage can be allocated and filled before any operator returns it.
        for tensor in tensors((args, kwargs, output)):
            self._count(tensor.untyped_storage())
        return output

    def _count(self, storage: torch.UntypedStorage) -> None:
        address = storage._cdata
        if address in self._known or storage.device.type == "meta":
            return
        self._known.add(address)
        size = storage.nbytes()
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        weakref.finalize(storage, self._free, address, size)

    def _free(self, address: int, size: int) -> None:
        self._known.discard(address)
        self.live_bytes -= size

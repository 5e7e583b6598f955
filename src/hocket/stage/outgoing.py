"""Tensors as they leave a stage: detached, dense, and in memory that nothing overwrites.

A packet waits in a mailbox, or is sent from its memory by another thread, while the stage that
sent it goes on. Its optimizer then writes new weights into the memory of the old ones.
"""

from collections.abc import Iterable

from torch import Tensor, strided

from hocket.distributed.wire import to_dense
from hocket.tree import Tree, map_tensors


def to_outgoing(values: Tree, overwritten: Iterable[Tensor | None]) -> Tree:
    """Return values as another stage receives them, in this process or another.

    A tensor is copied only if it has gaps or repeated elements, or if it shares its memory with
    one that is overwritten.

    Args:
        values: Nested tensors.
        overwritten: Tensors that this stage changes in place later, such as its weights; None
            stands for no tensor.

    Raises:
        PacketError: A tensor cannot be sent.
    """
    kept = {memory_address(tensor) for tensor in overwritten if tensor is not None}

    def prepare(tensor: Tensor) -> Tensor:
        dense = to_dense(tensor, tensor.device)
        return dense.clone() if memory_address(dense) in kept else dense

    return map_tensors(prepare, values)


def memory_address(tensor: Tensor) -> int | None:
    """Return the address of a tensor's memory; None if it has no memory of its own."""
    return tensor.untyped_storage().data_ptr() if tensor.layout == strided else None

"""Tensors as they leave a stage: detached, dense, and in memory that nothing overwrites.

A packet waits in a mailbox, or is sent from its memory by another thread, while the stage that
sent it goes on. Its optimizer then writes new weights into the memory of the old ones.
"""

from collections.abc import Sequence

from torch import Tensor, strided

from hocket.distributed.wire import to_dense
from hocket.tree import Tree, map_tensors


def to_outgoing(values: Tree, overwritten: Sequence[Tensor | None]) -> Tree:
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
    addresses = [
        tensor.data_ptr()
        for tensor in overwritten
        if tensor is not None and tensor.layout is strided
    ]

    def prepare(tensor: Tensor) -> Tensor:
        dense = to_dense(tensor, tensor.device)
        memory = dense.untyped_storage()
        start = memory.data_ptr()
        end = start + memory.nbytes()
        return dense.clone() if any([start <= a < end for a in addresses]) else dense

    return map_tensors(prepare, values)

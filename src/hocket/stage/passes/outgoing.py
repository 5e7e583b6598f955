"""Outputs as they leave a stage: detached, dense, and in memory that nothing overwrites.

A packet waits in a mailbox, or is sent from its memory by another thread, while the stage that
sent it goes on. Its optimizer then writes new weights into the memory of the old ones.
"""

from collections.abc import Sequence

from torch import Tensor, strided

from hocket.codecs.stateless import Exact
from hocket.distributed.wire import to_dense
from hocket.partition.parts.partial_module import PartialModule
from hocket.stage.core import StageCore
from hocket.transport.packet import Activation
from hocket.tree import Tree, map_tensors


def send_output(
    core: StageCore,
    activation: Activation,
    output: Tree,
    differentiable: tuple[bool, ...],
    tables: Sequence[bool],
) -> None:
    """Send an output to the next stage.

    Args:
        core: The stage.
        activation: Packet that the stage received.
        output: Output of the stage, with tensors of shape (B, ...).
        differentiable: For each of these tensors, True if a gradient is to come back.
        tables: For each of them, True if it is a table.
    """
    if core.parts.is_last:  # its loss comes from the graph, and nothing takes the output
        return
    core.parts.to_next.send(
        Activation(
            activation.batch,
            activation.epoch,
            to_outgoing(output, core.tensors.all()),
            differentiable,
            activation.targets,
            activation.share,
            _exact_values(core, tables),
        )
    )


def _exact_values(core: StageCore, tables: Sequence[bool]) -> tuple[bool, ...]:
    """Return for each tensor of an output whether no codec may change it.

    These are tables, and weights on their way to a stage that shares them.

    Args:
        core: The stage.
        tables: For each tensor of the output, True if it is a table.

    Returns:
        The answers; none if there is no codec.
    """
    if core.setup.codec == Exact():
        return ()
    module = core.parts.module
    weights = len(module.sent_weights) if isinstance(module, PartialModule) else 0
    first_weight = len(tables) - weights  # they are behind everything else
    return tuple(table or n >= first_weight for n, table in enumerate(tables))


def to_outgoing(values: Tree, overwritten: Sequence[Tensor | None]) -> Tree:
    """Return values as another stage receives them, in this process or another.

    A tensor is copied only if it has gaps or repeated elements, or if it shares its memory with
    one that is overwritten.

    Args:
        values: Nested tensors.
        overwritten: Tensors that this stage changes in place later, such as its weights; None
            is skipped.

    Raises:
        PacketError: A tensor cannot be sent.
    """
    # Where memory is overwritten.
    addresses = [
        tensor.data_ptr()
        for tensor in overwritten
        if tensor is not None and tensor.layout is strided
    ]

    # Copies of the tensors that have such an address in their memory.
    def prepare(tensor: Tensor) -> Tensor:
        dense = to_dense(tensor, tensor.device)
        memory = dense.untyped_storage()
        start = memory.data_ptr()
        end = start + memory.nbytes()
        return dense.clone() if any([start <= a < end for a in addresses]) else dense

    return map_tensors(prepare, values)

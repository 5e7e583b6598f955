"""Both ends of a batch's graph in a stage, and the output as it leaves: detached and dense.

A packet waits in a mailbox, or is sent from its memory by another thread, while the stage that
sent it continues. Its optimizer then writes new weights into the memory of the old ones. So
nothing is sent from memory that is overwritten.
"""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, strided

from hocket.codecs.stateless import Exact
from hocket.distributed.wire import to_dense
from hocket.errors import PacketError
from hocket.partition.parts.partial_module import PartialModule
from hocket.signals.signal import BackwardRoots, SignalInput
from hocket.stage.core import StageCore
from hocket.stage.in_flight import ForwardedBatch
from hocket.stage.late_gradients.linearizer import Invert
from hocket.stage.weight_copies.forward_state import ForwardState
from hocket.transport.packet import Activation
from hocket.tree import Tree, map_tensors, tensors


def graph_leaves(activation: Activation) -> Tree:
    """Return the tensors of an activation as leaves of a new graph.

    Raises:
        PacketError: It does not tell of each tensor whether it is differentiable.
    """
    count, told = len(tensors(activation.values)), len(activation.differentiable)
    if told != count:
        raise PacketError(
            f"activation {activation.batch} has {count} tensors, and tells of {told} whether "
            "they are differentiable"
        )
    flags = iter(activation.differentiable)
    return map_tensors(
        lambda value: value.detach().requires_grad_(next(flags)), activation.values
    )


def with_computed_input(
    core: StageCore, forwarded: ForwardedBatch, received: tuple[Tensor | None, ...]
) -> tuple[ForwardedBatch, tuple[Tensor | None, ...]]:
    """Compute the input of a batch from its output, as nothing of it was kept.

    Args:
        core: The stage, which inverts its layers.
        forwarded: The batch.
        received: Gradients that came back, and then the tensors of the output.

    Returns:
        The batch with its input and the output to differentiate, and the gradients.
    """
    # The output, in the structure that it had.
    count, batch = len(forwarded.differentiable), forwarded.activation.batch
    gradients, outputs = received[:count], iter(tensors(received[count:]))
    output = map_tensors(lambda _: next(outputs), forwarded.activation.values)

    # Its input at the present weights, and the graph from there.
    linearizer = core.linearizer
    assert isinstance(linearizer, Invert)
    with core.contexts.computing(batch, "forward", core.layers.draws):
        inputs = linearizer.invert(output)
    leaves = graph_leaves(replace(forwarded.activation, values=inputs))
    kept = linearizer.rebuild_output(leaves, ForwardState({}, {}))
    return forwarded._replace(leaves=leaves, output=kept), gradients


def network_input(core: StageCore, activation: Activation) -> Tree:
    """Return the input of the network, if the signal needs it; None otherwise."""
    if not core.parts.signal.needs_input:
        return None
    return activation.values if core.parts.index == 0 else activation.network_input


def backward_roots(
    core: StageCore,
    batch: int,
    output: Tree,
    targets: Tree,
    received: tuple[Tensor | None, ...],
    inputs: Tree = None,
) -> BackwardRoots:
    """Return where the backward starts, according to the stage's signal.

    Args:
        core: The stage.
        batch: Number of the batch.
        output: Output of the stage, with tensors of shape (B, ...).
        targets: Targets of the batch.
        received: Gradients that came back for the tensors of the output.
        inputs: Input of the network, if the signal needs it.
    """
    signal, network, loss = core.parts.signal, core.parts.signal_network, core.setup.loss

    def find(given: Tree) -> BackwardRoots:
        targets, received, inputs = given
        place = core.parts.index, core.parts.count
        return signal.backward_roots(
            network, SignalInput(output, targets, received, loss, *place, inputs)
        )

    # Random numbers of the batch, for a signal that may draw any.
    given = targets, received, inputs
    draws = "anything" if signal.may_draw(loss) else core.signal_layers.draws
    with core.contexts.computing(batch, "backward", draws):
        if signal.computes:
            return core.runner.run(batch, "roots", given, find)
        return find(given)  # what has come is only passed on


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

    # No codec may change tables, nor weights on their way to a stage that shares them.
    exact: tuple[bool, ...] = ()
    if core.setup.codec != Exact():
        module = core.parts.module
        weights = len(module.sent_weights) if isinstance(module, PartialModule) else 0
        first_weight = len(tables) - weights  # they are behind everything else
        exact = tuple(table or n >= first_weight for n, table in enumerate(tables))

    # Send it with what the next stage has to know. The loss of the last one needs no input.
    to_last = core.parts.index == core.parts.count - 2
    inputs = None if to_last else network_input(core, activation)
    core.parts.to_next.send(
        Activation(
            activation.batch,
            activation.epoch,
            core.runner.lasting(activation.batch, to_outgoing(output, core.tensors.all())),
            differentiable,
            activation.targets,
            activation.share,
            exact,
            to_outgoing(inputs, ()),
        )
    )


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

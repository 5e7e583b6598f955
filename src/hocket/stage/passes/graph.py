"""Both ends of a batch's graph in a stage: its leaves, and the roots of its backward."""

from torch import Tensor

from hocket.errors import PacketError
from hocket.signals.signal import BackwardRoots, SignalInput
from hocket.stage.core import StageCore
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


def backward_roots(
    core: StageCore,
    batch: int,
    output: Tree,
    targets: Tree,
    received: tuple[Tensor | None, ...],
) -> BackwardRoots:
    """Return where the backward starts, according to the stage's signal.

    Args:
        core: The stage.
        batch: Number of the batch.
        output: Output of the stage, with tensors of shape (B, ...).
        targets: Targets of the batch.
        received: Gradients that came back, one for each tensor of the output.
    """
    signal, network, loss = core.parts.signal, core.parts.signal_network, core.setup.loss
    inputs = SignalInput(output, targets, received, loss)

    # What has come is only passed on.
    if signal.needs_gradient:
        return signal.backward_roots(network, inputs)

    # The signal computes, with random numbers of the batch.
    draws = "anything" if signal.may_draw(loss) else core.signal_layers.draws
    with core.contexts.computing(batch, "backward", draws):
        return signal.backward_roots(network, inputs)

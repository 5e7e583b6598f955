"""The forward of a batch at one stage."""

from functools import partial

from hocket.signals.signal import expects_answer
from hocket.stage.core import StageCore
from hocket.stage.in_flight import ForwardedBatch
from hocket.stage.layers.module_tensors import find_tables
from hocket.stage.passes.edges import graph_leaves, send_output
from hocket.stage.passes.skip import skip_forward
from hocket.stage.report import ActionReport
from hocket.tree import is_inexact, tensors


def forward(core: StageCore, batch: int) -> ActionReport:
    """Forward a batch, send its output on, and keep what its backward needs.

    The output is sent only after it was searched for NaN and infinity.

    Args:
        core: The stage.
        batch: Number of the batch.

    Raises:
        PacketError: The batch has not come.
        NonFiniteError: The output is NaN or infinite, and that is to stop the training.
        LinearizeError: The layers are not compatible with the linearization.
    """
    # Receive the batch.
    activation = core.parts.to_previous.receive(batch)
    if activation.skipped or batch in core.setup.skip_batches:
        return skip_forward(core, activation)
    leaves = graph_leaves(activation)

    # Compute the output.
    linearizer, module, check = core.linearizer, core.parts.module, core.checks.layers
    forward_state = linearizer.forward_state(module)
    if core.checks.forward.edits_weights:
        linearizer.after_update()
    check.save_buffers()
    with (
        core.contexts.computing(batch, "forward", core.layers.draws),
        core.checks.forward.checking(leaves),
    ):
        output, kept = linearizer.forward(module, leaves)

    # Look for NaN and infinity, but for masks, through which no gradient flows.
    outputs = tensors(output)

    def find() -> list[bool]:
        """Return for each tensor of the output whether it depends on weights or gradients."""
        with core.contexts.computing(batch, "forward"):
            return linearizer.needs_gradient(module, leaves, output)

    find_flow = partial(core.flow.through, outputs, tensors(leaves), find)
    fault, masks = check.fault_in_output(outputs, find_flow)
    if fault is not None:
        check.restore_buffers()
        return skip_forward(core, activation, fault)

    # Send the output, with a note for which of its tensors a gradient is to come back.
    expects = expects_answer(core.parts.signal)
    tables = find_tables(outputs, find_flow)
    differentiable = tuple(
        [
            expects and is_inexact(tensor) and not (mask or table)
            for tensor, mask, table in zip(outputs, masks, tables, strict=True)
        ]
    )
    send_output(core, activation, output, differentiable, tables)

    # Keep the batch for its backward.
    version = core.weights.version
    core.in_flight.add(
        ForwardedBatch(activation, leaves, kept, differentiable, version, forward_state)
    )
    return ActionReport(activation.epoch, version)

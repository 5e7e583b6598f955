"""The forward of a batch at one stage."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from hocket.stage.core import StageCore
from hocket.stage.in_flight import ForwardedBatch
from hocket.stage.late_gradients.linearizer import KeptOutput
from hocket.stage.layers.module_tensors import find_tables
from hocket.stage.passes.edges import graph_leaves, network_input, send_output
from hocket.stage.passes.skip import skip_forward
from hocket.stage.report import ActionReport
from hocket.stage.weight_copies.forward_state import ForwardState
from hocket.tree import Tree, is_inexact, tensors


def forward(core: StageCore, batch: int) -> ActionReport:
    """Forward a batch, send its output on, and keep what its backward needs.

    The output is sent only after it was searched for NaN and infinity.

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
    signal_input = None
    if core.parts.signal.computes:
        signal_input = activation.targets, network_input(core, activation)
    core.runner.begin(batch, (leaves, signal_input))
    with core.contexts.computing(batch, "forward", core.layers.draws):
        computed = core.runner.run(batch, "forward", leaves, partial(_compute, core, batch))
    if computed.fault is not None:
        core.checks.layers.restore_buffers()
        return skip_forward(core, activation, computed.fault)

    # Send it, and keep the batch for its backward.
    _, leaves, state, output, kept, differentiable, tables = computed
    send_output(core, activation, output, differentiable, tables)
    version = core.weights.version
    forwarded = ForwardedBatch(activation, leaves, kept, differentiable, version, state)
    if core.linearizer.inverts:
        forwarded = forwarded.without_tensors(output)
    core.in_flight[batch] = forwarded
    return ActionReport(activation.epoch, version)


class _Computed(NamedTuple):
    """Results of a forward.

    Attributes:
        fault: The first value that is NaN or infinite, described; None if there is none.
        leaves: Input of the stage, as leaves of the graph.
        state: State to repeat the forward from; None if it is not kept.
        output: Output of the stage, with tensors of shape (B, ...).
        kept: Output to differentiate, when the gradient has come.
        differentiable: For each tensor of the output, True if a gradient is to come back.
        tables: For each of them, True if it is a table.
    """

    fault: str | None
    leaves: Tree
    state: ForwardState | None
    output: Tree
    kept: KeptOutput
    differentiable: tuple[bool, ...]
    tables: Sequence[bool]


def _compute(core: StageCore, batch: int, leaves: Tree) -> _Computed:
    """Compute the output of a batch, and look for NaN and infinity in it."""
    # Forward the layers.
    linearizer, check = core.linearizer, core.checks.layers
    state = linearizer.forward_state()
    if core.checks.forward.edits_weights:
        linearizer.after_update()
    check.save_buffers()
    with core.checks.forward.checking(leaves):
        output, kept = linearizer.forward(leaves)

    # Look for NaN and infinity, but for masks, through which no gradient flows.
    outputs = tensors(output)

    def find() -> list[bool]:
        """Return for each tensor of the output whether it depends on weights or gradients."""
        with core.contexts.computing(batch, "forward"):
            return linearizer.needs_gradient(leaves, output)

    find_flow = partial(core.tensors.flow_through, outputs, tensors(leaves), find)
    fault, masks = check.fault_in_output(outputs, find_flow)
    if fault is not None:
        return _Computed(fault, leaves, state, output, kept, (), ())

    # Find out for which tensors a gradient is to come back.
    expects = core.parts.signal.expects_answer
    tables = find_tables(outputs, find_flow)
    differentiable = tuple(
        [
            expects and is_inexact(tensor) and not (mask or table)
            for tensor, mask, table in zip(outputs, masks, tables, strict=True)
        ]
    )
    return _Computed(None, leaves, state, output, kept, differentiable, tables)

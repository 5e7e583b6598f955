"""The backward of a batch at one stage."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from torch import Tensor

from hocket.errors import OptionError, warn
from hocket.signals.losses import count_averaged
from hocket.signals.signal import BackwardRoots
from hocket.stage.core import StageCore
from hocket.stage.graphs.runner import Differentiated
from hocket.stage.in_flight import DeferredTarget, ForwardedBatch
from hocket.stage.passes.back_propagate import back_propagate, require_graph
from hocket.stage.passes.edges import (
    backward_roots,
    network_input,
    to_outgoing,
    with_computed_input,
)
from hocket.stage.passes.skip import skip_backward
from hocket.stage.report import ActionReport, Number
from hocket.stage.steps import Steps
from hocket.stage.update.untrained import describe_names
from hocket.transport.packet import Gradient
from hocket.tree import Tree, map_tensors, tensors


def backward(core: StageCore, batch: int) -> Steps[ActionReport]:
    """Back-propagate a batch, and send the gradients of the inputs to the stage before.

    Nothing is sent before all checks have passed: the stage where a fault began has to be the
    one that reports it. The second step needs the gradients of all replicas.

    Raises:
        PacketError: Its gradient has not come.
        NonFiniteError: The loss or a gradient is NaN or infinite, and that is to stop the
            training.
        OptionError: The loss does not depend on the output.
        LinearizeError: The layers are not compatible with the linearization.
    """
    # Receive the gradients of the output, if the signal uses them, or the output itself.
    forwarded = core.in_flight.pop(batch)
    activation, signal = forwarded.activation, core.parts.signal
    received: tuple[Tensor | None, ...] | None = (None,) * len(forwarded.differentiable)
    if signal.needs_gradient and (any(forwarded.differentiable) or core.linearizer.inverts):
        received = core.parts.to_next.receive(batch).values
    if activation.skipped or received is None or batch in core.setup.skip_batches:
        return skip_backward(core, activation)

    # Find out where the backward starts.
    checks = core.checks
    checks.layers.save_buffers()
    checks.signal.save_buffers()
    core.runner.resume(batch)
    if core.linearizer.inverts:
        forwarded, received = with_computed_input(core, forwarded, received)
    output = _output_of(core, forwarded)
    seen = map_tensors(Tensor.detach, output) if signal.learns_from_gradient else None
    x = network_input(core, activation)
    roots = backward_roots(core, batch, output, activation.targets, received, x)
    if activation.share == 0:  # of several replicas this one has no targets
        roots = roots.without_nan()
    leaves = tensors(forwarded.leaves)
    learning = chain(core.updater.parameters, leaves)
    require_graph(roots, core.parts.index, learning, tensors(output))
    targets: Number = None
    if roots.loss is not None:
        targets = count_averaged(core.setup.loss, output, activation.targets, activation.values)
    del output  # the backward then frees what it has used

    # Differentiate.
    done = core.runner.differentiate(
        batch, roots.gradients, partial(_differentiate, core, forwarded, roots)
    )
    if done.fault is not None:
        checks.layers.restore_buffers()
        checks.signal.restore_buffers()
        return skip_backward(core, activation, done.fault, overflowed=done.overflowed)

    if core.parts.previous_waits(activation):
        _send(core, batch, leaves, done.sent)

    # Add up the gradients of all replicas, and accumulate them until the update. Updates that
    # wait for such a sum come before it.
    core.updater.begin_sums()
    yield
    staleness = core.updater.version + core.updater.late_updates - forwarded.version
    then = core.weights.at_version(forwarded.version)
    core.gradients = core.updater.accumulate(forwarded.version, then)
    if roots.deferred is not None:
        core.deferred_targets[batch] = DeferredTarget(roots.deferred, activation, seen)
    core.epochs[batch] = activation.epoch
    loss, targets = core.runner.lasting(batch, (roots.loss, targets))
    core.runner.end(batch)
    return ActionReport(
        epoch=activation.epoch,
        version=core.updater.version,
        staleness=staleness,
        loss=loss,
        targets=targets,
        gradient_norm=checks.layers.norm_over_replicas(done.norm, core.gradients),
    )


def _send(
    core: StageCore, batch: int, leaves: Sequence[Tensor], gradients: Sequence[Tensor | None]
) -> None:
    """Send the gradients of the inputs to the stage before, with the inputs if it inverts."""
    # One may share its memory with the gradient of a weight, as both are views of one.
    inputs = [leaf.detach() for leaf in leaves] if core.parts.previous_inverts else []
    outgoing = to_outgoing((*gradients, *inputs), [weight.grad for weight in core.trained])
    core.parts.to_previous.send(Gradient(batch, outgoing))


def _output_of(core: StageCore, forwarded: ForwardedBatch) -> Tree:
    """Return the output to differentiate, which may have to be computed."""
    get, batch = forwarded.output.get, forwarded.activation.batch
    if not core.linearizer.recomputes:
        return get()
    with core.contexts.computing(batch, "forward", core.layers.draws):
        return core.runner.run(batch, "output", (), lambda _: get())


def _differentiate(
    core: StageCore,
    forwarded: ForwardedBatch,
    roots: BackwardRoots,
    gradients: tuple[Tensor | None, ...],
) -> Differentiated:
    """Differentiate, and look for NaN and infinity before and after it."""
    # A loss that is not finite has no gradients worth a look.
    checks = core.checks
    fault = checks.layers.fault_in_loss(roots.loss) or checks.signal.fault_in_buffers()
    if fault is not None:
        return Differentiated(fault=fault)

    # The gradients of the weights, and of the inputs.
    if gradients is not roots.gradients:
        roots = replace(roots, gradients=gradients)
    scaled = _back_propagate(core, roots, forwarded)
    forwarded.output.after_backward()
    sent = core.loss_scale.unscale(core.updater.parameters, scaled)
    fault, norm = checks.layers.fault_in_gradients(sent)
    return Differentiated(
        sent, norm, fault, overflowed=core.loss_scale.judge(finite=fault is None)
    )


def _back_propagate(
    core: StageCore, roots: BackwardRoots, forwarded: ForwardedBatch
) -> list[Tensor | None]:
    """Back-propagate into the weights and inputs of the stage.

    Returns:
        The gradients of inputs that cross the edge to the stage before.

    Raises:
        OptionError: The loss uses weights of other stages.
    """
    # Drop gradients that were left on weights between two batches.
    checks = core.checks
    if any([weight.grad is not None for weight in core.trained]):
        names = (*core.updater.names, *core.signal_updater.names)
        left = {n: w for n, w in zip(names, core.trained, strict=True) if w.grad is not None}
        for weight in left.values():
            weight.grad = None
        warn(
            f"{describe_names(list(left))} had gradients that no batch of this training made, "
            "as after a backward of your own; they are dropped, as by zero_grad before a "
            "backward"
        )

    # The guard against inner forwards takes time, and plain layers need none.
    known = core.layers.plain and core.signal_layers.plain
    guard = checks.inner_forward
    if known and checks.forward.backward_is_checked:
        guard = None

    # The first backward from a loss shows whether it uses weights of other stages, whose
    # gradients would be lost among processes.
    others = checks.foreign_weights if roots.loss is not None else []
    foreign = [(name, p) for name, p in others if p.grad is None]
    sent: list[Tensor | None] = []
    leaves, share = tensors(forwarded.leaves), forwarded.activation.share
    parts = list(roots.by_crossings())
    for n, (part, crosses) in enumerate(parts, 1):
        keep_graph = core.runner.keeps_graphs or n < len(parts)
        if n == len(parts):  # the gradients of all parts add up in ``grad``
            core.updater.expect_gradients()
        back_propagate(part, share, guard, core.loss_scale.factor, keep_graph=keep_graph)
        sent += [leaf.grad for leaf in leaves if crosses]
        for leaf in leaves:
            leaf.grad = None  # the next part would add to it
    checks.forward.backward_is_checked = True
    if foreign:
        checks.foreign_weights.clear()
    if used := [name for name, p in foreign if p.grad is not None]:
        raise OptionError(
            f"stage {core.parts.index}: the loss uses {describe_names(used)} of other stages, "
            "whose gradients would be lost among processes; use the weight_decay of the "
            "optimizer, or return the penalty from the forward of the network"
        )
    return sent

"""Stages and their signals, built from a method and the layers of each stage."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

import torch
from torch import nn

from hocket.codecs.stateless import Exact
from hocket.distributed.replicas.gradient_sync import GradientSync
from hocket.distributed.world.world import World
from hocket.errors import OptionError, warn
from hocket.methods.method import Method
from hocket.partition.parts.partial_module import PartialModule
from hocket.partition.sequential import is_sequential, layers_in_order
from hocket.restore import dry_run
from hocket.signals import Objective
from hocket.signals.signal import LaterLayers, Signal
from hocket.stage.contexts import seeded_rng
from hocket.stage.layers.compatibility import check_compatible
from hocket.stage.parts import StageParts
from hocket.stage.passes.back_propagate import load_backward
from hocket.stage.setup import Setup
from hocket.stage.stage import Stage
from hocket.transport.encoded import EncodedPort
from hocket.transport.processes.backends import Backends
from hocket.tree import Tree, copy_tensors


def warn_of_biased_gradients(setup: Setup) -> None:
    """Warn if a codec makes gradients biased.

    Args:
        setup: Options of the training.
    """
    if setup.codec.biases_gradients and setup.method.signal.needs_gradient:
        warn(
            f"the codec {setup.codec} sends other activations than method "
            f"{setup.method.name!r} back-propagates through: a stage applies the gradient at "
            "what the next one received as if it were that at its own output, so that all "
            "stages but the last learn from biased gradients; methods with local losses, such "
            "as dgl, do not",
        )


def warn_of_idle_remedies(method: Method, stages: int) -> None:
    """Warn of remedies that change nothing, as no gradient is late enough.

    Args:
        method: Method of the training.
        stages: Number of stages.
    """
    idle = [remedy.name for remedy in method.remedies if remedy.slows or stages == 1]
    if idle and all(method.staleness(stage, stages) <= 1 for stage in range(stages)):
        warn(
            f"{' and '.join(idle)} changes nothing: on {stages} stage{'s'[: stages - 1]} of "
            f"{method.name!r} no "
            "gradient is late by more than one update in the mean; use more stages, or leave "
            "it out",
        )


def build_stage(setup: Setup, parts: StageParts) -> Stage:
    """Build one stage on its device; a codec is put between its ports and its neighbours.

    Args:
        setup: Options that all stages share.
        parts: Layers, signal and ports of the stage.

    Raises:
        OptionError: Its layers are not compatible with the method.
    """
    method = setup.method
    parts.module.to(setup.device)
    parts.signal_network.to(setup.device)
    delay = method.graph_delay(parts.index, parts.count)
    check_compatible(
        parts.module,
        method.linearize,
        delay,
        parts.index,
        setup.precision,
        names=parts.names,
        resumable=setup.resumable,
    )
    if parts.signal.needs_gradient:
        load_backward()
    return Stage(setup, parts if setup.codec == Exact() else _with_codec(setup, parts))


def share_with_replicas(parts: StageParts, world: World, backends: Backends) -> StageParts:
    """Let a stage share its work with its replicas: gradients are added up over all of them.

    Args:
        parts: Parts of the stage.
        world: This process among the others.
        backends: Process groups of this process.
    """
    if world.replicas == 1:
        return parts
    reduction = partial(GradientSync, world=world, group=backends.gradient_group)
    return replace(parts, reduction=reduction, seed_offset=world.replica << 32)


def _with_codec(setup: Setup, parts: StageParts) -> StageParts:
    codec, index = setup.codec, parts.index
    seed = setup.seed + parts.seed_offset
    to_previous, to_next = parts.to_previous, parts.to_next
    if index > 0:
        edge = f"the edge from stage {index} to stage {index - 1}"
        to_previous = EncodedPort(to_previous, codec.gradients, codec, seed, edge=edge)
    if index < parts.count - 1:
        to_next = EncodedPort(
            to_next,
            codec,
            codec.gradients,
            seed + index,
            parts.send_stats,
            self_contained=setup.method.free_running,
            edge=f"the edge from stage {index} to stage {index + 1}",
        )
    return replace(parts, to_previous=to_previous, to_next=to_next)


@torch.enable_grad()  # for networks that differentiate in their forward
def build_signals(
    setup: Setup, modules: Sequence[nn.Module], sample: Tree
) -> tuple[list[Signal], list[nn.Module]]:
    """Build the signal of each stage, and its auxiliary network.

    The last stage has the network's own loss. Auxiliary networks are built for the shapes that
    the sample takes on its way through the stages.

    Args:
        setup: Options that all stages share.
        modules: Layers of each stage.
        sample: A small batch of inputs, with tensors of shape (B, ...).

    Raises:
        OptionError: An output is not what a signal needs.
    """
    # Forward the sample, to know the shapes on its way.
    signals = [setup.method.signal] * (len(modules) - 1) + [Objective()]
    shapes: list[tuple[int, ...]] = []
    dtypes: list[torch.dtype] = []
    hidden: list[list[tuple[int, ...]]] = []
    value = sample
    networks_cut = {m.network for m in modules if isinstance(m, PartialModule)}
    with dry_run(*modules, *networks_cut):  # a part repeats the forward of its whole network
        for k, module in enumerate(modules):
            value, outputs = _forward_by_layers(module, copy_tensors(value))
            hidden.append(outputs)
            real = isinstance(value, torch.Tensor) and value.is_floating_point()
            if k < len(modules) - 1 and not signals[k].needs_gradient and not real:
                raise OptionError(
                    f"method {setup.method.name!r}: the output of stage {k} is not one tensor "
                    "of floating point numbers, which its signal needs; cut elsewhere, or "
                    "choose a method that waits for gradients"
                )
            shapes.append(tuple(value.shape[1:]) if real else ())
            dtypes.append(value.dtype if real else torch.get_default_dtype())

    # Build a network for each signal, from the shapes before and after it.
    output_shape = shapes[-1] if real else None
    networks = []
    for k, signal in enumerate(signals):
        shapes_behind = tuple(chain.from_iterable(hidden[k + 1 :]))[:-1]
        before = max(sum(map(len, hidden[: k + 1])) - 1, 0)
        later = LaterLayers(shapes_behind, k / max(len(modules) - 2, 1), before)
        with seeded_rng(setup.seed, k, 0, "signal", setup.device):
            network = signal.build_network(shapes[k], output_shape, later)
        networks.append(network.to(dtypes[k]))
    return signals, networks


def _forward_by_layers(module: nn.Module, value: Tree) -> tuple[Tree, list[tuple[int, ...]]]:
    """Forward a stage, whose layers are known if it is an nn.Sequential.

    Args:
        module: Layers of the stage.
        value: Its input.

    Returns:
        Its output, and the shape of the output of each layer with weights, without the batch.
    """
    layers = [module]
    if is_sequential(module) and module._modules:
        layers = list(layers_in_order(module).values())
    shapes = []
    for layer in layers:
        value = layer(value)
        if isinstance(value, torch.Tensor) and next(layer.parameters(), None) is not None:
            shapes.append(tuple(value.shape[1:]))
    return value, shapes

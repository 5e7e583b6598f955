"""The signal of each stage, with an auxiliary network for the shapes on its way."""

from collections.abc import Sequence
from itertools import chain

import torch
from torch import nn

from hocket.errors import OptionError
from hocket.partition.parts.partial_module import PartialModule
from hocket.restore import dry_run
from hocket.signals import Objective
from hocket.signals.signal import Signal, StageShapes, place_of_stage
from hocket.stage.contexts import seeded_rng
from hocket.stage.layers.reversible import layers_of
from hocket.stage.setup import Setup
from hocket.tree import Tree, copy_tensors


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
    shapes: list[tuple[int, ...] | None] = []
    dtypes: list[torch.dtype] = []
    hidden: list[list[tuple[int, ...]]] = []
    value = sample
    networks_cut = {m.network_cut for m in modules if isinstance(m, PartialModule)}
    with dry_run(*modules, *networks_cut):  # a part repeats the forward of its whole network
        for k, module in enumerate(modules):
            # Layer by layer, if they are known: signals need the shapes between them.
            value, outputs = copy_tensors(value), []
            for layer in layers_of(module):
                value, has_weights = layer(value), next(layer.parameters(), None) is not None
                if isinstance(value, torch.Tensor) and has_weights:
                    outputs.append(tuple(value.shape[1:]))
            hidden.append(outputs)

            # The shape that the stage sends on.
            shapes.append(shape := _real_shape(value))
            if shape is None and k < len(modules) - 1 and signals[k].computes:
                raise OptionError(
                    f"method {setup.method.name!r}: the output of stage {k} is not one tensor "
                    "of floating point numbers, which its signal needs; cut elsewhere, or "
                    "choose a method that waits for gradients"
                )
            dtypes.append(torch.get_default_dtype() if shape is None else value.dtype)

    # Build a network for each signal, from the shapes before and after it.
    networks = []
    for k, signal in enumerate(signals):
        known = StageShapes(
            shapes[k] or (),
            shapes[-1],
            later=tuple(chain.from_iterable(hidden[k + 1 :]))[:-1],
            before=max(sum(map(len, hidden[: k + 1])) - 1, 0),
            place=place_of_stage(k, len(modules)),
            network_input=_real_shape(sample) or (),
        )
        # On the CPU, so that a default device of another kind does not draw other weights.
        with torch.device("cpu"), seeded_rng(setup.seed, k, 0, "signal", setup.device):
            network = signal.build_network(known)
        networks.append(network.to(dtypes[k]))
    return signals, networks


def _real_shape(value: Tree) -> tuple[int, ...] | None:
    """Return the shape of one sample of a tensor of real numbers; None for other values."""
    is_real = isinstance(value, torch.Tensor) and value.is_floating_point()
    return tuple(value.shape[1:]) if is_real else None

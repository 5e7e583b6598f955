"""Check that the layers of a stage are compatible with the linearization of late gradients.

Some layers save more than their weights and activations, or run again in the backward. Which
of them are incompatible with `stash` and `live` was found by comparing gradients with
references. A forward that is repeated needs its random numbers again.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils import parametrize, prune
from torch.overrides import TorchFunctionMode

from hocket.errors import LinearizeError, OptionError, format_problems
from hocket.methods.method import FORWARDS_AGAIN, Linearize
from hocket.partition.unfit_network import is_compiled
from hocket.stage.layers.module_tensors import NetworkNames
from hocket.tree import Tree, tensors

GENERATORS = (
    torch.Generator, random.Random, numpy.random.Generator, numpy.random.RandomState,
)  # fmt: skip
"""Generators of random numbers that a layer may have for itself."""


def check_compatible(
    module: nn.Module,
    linearize: Linearize,
    delay: int,
    stage: int,
    precision: str,
    *,
    names: NetworkNames,
    resumable: bool = False,
) -> None:
    """Refuse a stage whose late gradients would not be what ``linearize`` says.

    Args:
        module: Layers of the stage.
        linearize: Weights that a late gradient is computed at.
        delay: Ticks between a forward and its backward.
        stage: Number of the stage, for the message.
        precision: Name of the precision, such as ``fp32``.
        names: Names of the layers in the network.
        resumable: True if batches in flight may be forwarded again from a checkpoint.

    Raises:
        OptionError: There are incompatible layers; the message lists all of them.
    """
    # Forwards that are repeated, in the backward or after a checkpoint, draw again.
    repeats = delay > 0 and linearize in FORWARDS_AGAIN
    named = names.of_layers(module)
    layers = [(f"layer {name!r}" if name else "the stage", layer) for name, layer in named]
    problems = _find_own_generators(layers) if repeats or resumable else []

    # Graphs that are kept meet later weights.
    if delay > 0 and linearize not in FORWARDS_AGAIN:
        stale = []
        for owner, layer in layers:
            if is_compiled(layer):
                stale.append(f"{owner} is compiled, which may recompute parts at other weights")
            if linearize == "live" and _uses_derived_weights(layer):
                stale.append(
                    f"{owner} ({type(layer).__name__}) computes with copies of its weights, "
                    "which stay those of the forward"
                )
        if linearize == "live" and precision != "fp32":  # autocast does so, too
            stale.append(
                f"precision {precision!r} computes with copies of the weights made in the "
                "forward"
            )
        if stale:  # by which linearization would do instead
            stash = " or 'stash'" if not any(is_compiled(layer) for _, layer in layers) else ""
            stale.append(f"use linearize='recompute'{stash if linearize == 'live' else ''}")
        problems += stale
    if problems:
        wanted = f"linearize={linearize!r}" + (", resumable" if resumable else "")
        raise OptionError(
            format_problems(f"stage {stage} is not compatible with {wanted}", problems)
        )


def _find_own_generators(layers: Sequence[tuple[str, nn.Module]]) -> list[str]:
    """Return one problem for each generator that would draw other numbers the second time."""
    problems = [
        f"{owner} draws random numbers from a generator of its own ({name!r}), and draws "
        "others when a forward is repeated"
        for owner, layer in layers
        for name, value in vars(layer).items()
        if isinstance(value, GENERATORS)
    ]
    if problems:
        problems.append("draw from the global generator of torch, numpy or random instead")
    return problems


def _uses_derived_weights(layer: nn.Module) -> bool:
    """Return True if a layer computes with tensors made from its parameters, not with them."""
    hooks = layer._forward_pre_hooks.values()
    made = any(
        type(hook).__name__ in ("WeightNorm", "SpectralNorm")
        or isinstance(hook, prune.BasePruningMethod)
        for hook in hooks
    )
    repeated = isinstance(layer, _InstanceNorm) and layer.affine  # once for each input
    known = repeated or isinstance(layer, nn.RNNBase)
    return made or known or parametrize.is_parametrized(layer)


def check_graph(output: Tree, weights: Mapping[str, Tensor]) -> None:
    """Refuse functions of autograd that keep a weight or a layer as an attribute of ``ctx``.

    What ``ctx.save_for_backward`` keeps can be held at the weights of the forward; an attribute
    is the weight itself, which the optimizer changes before a late backward.

    Raises:
        LinearizeError: There is such a function.
    """
    # Weights by their memory.
    names = {
        weight.untyped_storage().data_ptr(): name
        for name, weight in weights.items()
        if weight.requires_grad and weight.numel()
    }

    # What each function of the user's keeps.
    for node in graph_nodes(output):
        if isinstance(node, BackwardCFunction):
            for attribute, value in vars(node).items():
                holder = isinstance(value, nn.Module)
                for kept in value.parameters() if holder else tensors(value):
                    if (name := names.get(kept.untyped_storage().data_ptr())) is not None:
                        raise LinearizeError(
                            f"{node.name()} keeps the weight {name!r} as ctx.{attribute}, so a "
                            "late backward would see current weights and not those of the "
                            "forward; keep it with ctx.save_for_backward, or use "
                            "linearize='recompute'"
                        )


def graph_nodes(output: Tree) -> Iterator[Node]:
    """Yield each node of the graph of an output once."""
    nodes = [tensor.grad_fn for tensor in tensors(output) if tensor.grad_fn is not None]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        yield node
        following = {each for each, _ in node.next_functions if each is not None} - seen
        seen |= following
        nodes += following


class ForbidForward(TorchFunctionMode):
    """Context manager for a backward in which a forward is an error.

    Activation checkpointing does such a forward: it recomputes at the current weights. The
    backward itself, and a custom autograd function in it, runs without gradients; a forward
    that is to be differentiated enables them, or another backward follows it.

    The mode sees the calls of Python only, not the operations of autograd: a dispatch mode
    would take every operation of the backward through Python. A call with tensors is handed to
    the mode, which is off during that call; so the backward has to be called with edges of the
    graph.

    Args:
        stage: Number of the stage, for the message.

    Raises:
        LinearizeError: There was a forward.
    """

    def __init__(self, stage: int) -> None:
        super().__init__()
        self._stage = stage

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if torch.is_grad_enabled() or func is torch.autograd.backward:
            raise LinearizeError(
                f"stage {self._stage}: something was forwarded again inside the backward, as "
                "activation checkpointing does, at other weights than linearize asks for; "
                "use linearize='recompute', or remove the checkpointing"
            )
        return func(*args, **(kwargs or {}))

"""State of a stage's layers at one forward, from which that forward can be repeated.

A graph cannot be written to disk. To resume from a checkpoint, each batch in flight is
forwarded again, from the same input, random numbers, weights and statistics as before.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hocket.tree import Tree


@dataclass(frozen=True)
class ForwardState:
    """Weights and buffers of the layers at one forward.

    Attributes:
        weights: Trained weights by name; batches of one version share them. Empty if no update
            comes before the backward.
        buffers: Buffers before the forward, such as the running statistics of BatchNorm.
        frozen: Names of the weights that needed no gradient.
    """

    weights: dict[str, Tensor]
    buffers: dict[str, Tensor]
    frozen: Collection[str] = ()


def frozen_weights(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the weights that need no gradient."""
    return tuple([name for name, p in module.named_parameters() if not p.requires_grad])


@contextmanager
def only_frozen(module: nn.Module, names: Collection[str]) -> Iterator[None]:
    """Context manager in which these weights of a module are frozen, and no others."""
    before = [(weight, weight.requires_grad) for weight in module.parameters()]
    try:
        for name, weight in module.named_parameters():
            weight.requires_grad_(name not in names)
        yield
    finally:
        for weight, needs_gradient in before:
            weight.requires_grad_(needs_gradient)


@contextmanager
def replaced_buffers(module: nn.Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Context manager in which a module has other buffers, also where it has one twice."""
    owned = dict(module.named_buffers())
    other = {id(owned[name]): value for name, value in values.items()}
    replaced = [
        (layer._buffers, name, buffer)
        for layer in module.modules()
        for name, buffer in layer._buffers.items()
        if id(buffer) in other
    ]
    for buffers, name, buffer in replaced:
        buffers[name] = other[id(buffer)]
    try:
        yield
    finally:
        for buffers, name, buffer in replaced:
            buffers[name] = buffer


def forward_without_buffer_updates(
    module: nn.Module,
    inputs: Tree,
    run: Callable[[Tree], Tree] | None = None,
    buffers: Mapping[str, Tensor] | None = None,
) -> Tree:
    """Return a module's output, and leave its buffers (BatchNorm's statistics) unchanged.

    Args:
        module: The module.
        inputs: Its input, with tensors of shape (B, ...).
        run: Calls its compiled layers; None to call the module.
        buffers: Buffers to begin with, by name; the present ones if there are none.
    """
    # Clones receive the in-place updates; parameters are the module's own and get gradients.
    given = buffers or dict(module.named_buffers())
    with replaced_buffers(module, {name: buffer.clone() for name, buffer in given.items()}):
        return (run or module)(inputs)


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return all weights and buffers by name, also those that a state_dict leaves out."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: tensor.detach() for name, tensor in named}


@torch.no_grad()
def set_tensors(module: nn.Module, values: dict[str, Tensor]) -> None:
    """Set weights and buffers to these values, in place; equal ones are not touched."""
    targets = named_tensors(module)
    for name, value in values.items():
        target = targets[name]
        moved = value.to(target.device)
        if target.shape != moved.shape:  # a buffer that forwards replace, as a memory bank
            module.get_buffer(name).data = moved.clone()
        elif not torch.equal(target, moved):
            target.copy_(moved)


def mismatches(module: nn.Module, values: dict[str, Tensor], label: str) -> list[str]:
    """Return one line for each reason why values are not of a module.

    Args:
        module: Layers of the stage.
        values: Weights and buffers by name.
        label: Name of the values' owner, which begins each line.
    """
    wanted = named_tensors(module)
    problems = [f"{label}: {name!r} is missing" for name in wanted.keys() - values.keys()]
    problems += [f"{label}: there is no {name!r}" for name in values.keys() - wanted.keys()]
    weights = dict(module.named_parameters())  # forwards may give buffers another shape
    problems += [
        f"{label}: {name!r} has shape {tuple(value.shape)} and type {value.dtype}, wanted "
        f"{tuple(wanted[name].shape)} and {wanted[name].dtype}"
        for name, value in values.items()
        if (name in wanted and value.dtype != wanted[name].dtype)
        or (name in weights and value.shape != weights[name].shape)
    ]
    return sorted(problems)

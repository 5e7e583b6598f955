"""What a stage's layers were when they forwarded a batch, for that forward to be done again.

A graph cannot be written down. Where one has to outlive its process, the batch is forwarded
again: the same input, the same random numbers, and the weights and statistics of that time.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hocket.tree import Tree


@dataclass(frozen=True)
class ForwardState:
    """The layers at one forward.

    Attributes:
        weights: The trained weights by name, as they were; batches of one version share them.
        buffers: The buffers before the forward, such as the running statistics of BatchNorm.
    """

    weights: dict[str, Tensor]
    buffers: dict[str, Tensor]


def repeat_forward(module: nn.Module, past: ForwardState, inputs: Tree) -> Tree:
    """The output of then. The module is left with the weights of then, and its own buffers."""
    set_values(module, past.weights)
    # Clones: each forward has its own, and what autograd saves of them must not change.
    copies = {name: buffer.clone() for name, buffer in past.buffers.items()}
    return torch.func.functional_call(module, copies, (inputs,))


def named_values(module: nn.Module) -> dict[str, Tensor]:
    """All weights and buffers by name, also those that a state_dict leaves out."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: value.detach() for name, value in named}


@torch.no_grad()
def set_values(module: nn.Module, values: dict[str, Tensor]) -> None:
    """Give weights and buffers these values, in place; equal ones are not touched."""
    own = named_values(module)
    for name, value in values.items():
        there = value.to(own[name].device)
        if not torch.equal(own[name], there):
            own[name].copy_(there)


def mismatches(module: nn.Module, values: dict[str, Tensor], what: str) -> list[str]:
    """What keeps these values from being those of a module, in words."""
    own = named_values(module)
    problems = [f"{what}: {name!r} is missing" for name in own.keys() - values.keys()]
    problems += [f"{what}: there is no {name!r}" for name in values.keys() - own.keys()]
    problems += [
        f"{what}: {name!r} has shape {tuple(value.shape)} and type {value.dtype}, wanted "
        f"{tuple(own[name].shape)} and {own[name].dtype}"
        for name, value in values.items()
        if name in own and (value.shape, value.dtype) != (own[name].shape, own[name].dtype)
    ]
    return sorted(problems)

"""Copies of modules, on which measurements run without a trace in the network."""

import copy
from collections.abc import Sequence

from torch import Tensor, nn

from hocket.partition.partial_module import PartialModule


def copy_modules(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """Copy modules together, so that copies share what the modules share.

    PyTorch copies no tensor with a graph, such as one that a forward has left in an attribute:
    its copy has none.

    Args:
        modules: Modules of a network, or its stages.
    """
    copied: dict[int, object] = {}
    for module in modules:
        whole = module.network if isinstance(module, PartialModule) else module
        for part in whole.modules():
            for value in vars(part).values():
                if isinstance(value, Tensor) and value.grad_fn is not None:
                    copied[id(value)] = value.detach().clone()
    return copy.deepcopy(list(modules), copied)

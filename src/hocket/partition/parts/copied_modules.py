"""Copies of modules and of what they are given, which run without a trace in the network."""

import copy
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode


def copy_modules(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """Copy modules together, so that copies share what the modules share.

    PyTorch copies no tensor with a graph, such as one that a forward has left in an attribute:
    its copy has none.
    """
    with _CopiesWithoutGraph():
        return copy.deepcopy(list(modules))


def copy_objects(arguments: Sequence[Any]) -> list[Any]:
    """Copy what a module may fill, such as a cache, but neither tensors nor modules.

    Returns:
        The copies, or the arguments if one of them cannot be copied, such as a lock.
    """
    memo = {id(leaf): leaf for leaf in arguments if isinstance(leaf, Tensor | nn.Module)}
    try:
        with _CopiesWithoutGraph():
            return copy.deepcopy(list(arguments), memo)
    except Exception:
        return list(arguments)


class _CopiesWithoutGraph(TorchFunctionMode):
    """Torch function mode in which tensors with a graph are copied without it.

    They are met wherever they are kept, such as in a list or in the network of a stage.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.__deepcopy__ and (args[0].grad_fn or isinstance(args[0], FakeTensor)):
            return args[0].detach().clone()
        return func(*args, **(kwargs or {}))

"""Kinds of PyTorch functions, which decide whether a stage can skip them in a forward."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from hocket import tree

QUERY_REMEDIES = {
    "_pack_padded_sequence": ("pack, run and unpack in a module of its own",),
    "_nested_tensor_from_mask_left_aligned": (
        "build the encoder with enable_nested_tensor=False, or set use_nested_tensor = False "
        "on that of an nn.Transformer",
    ),
}
"""Remedies for functions whose results depend on the numbers in a tensor."""
# Functions whose result depends on neither the elements nor the shape of a tensor.
METADATA_FUNCTIONS = frozenset([
    "dtype", "device", "layout", "ndim", "dim", "ndimension", "requires_grad", "is_leaf",
    "grad_fn", "is_cpu", "is_cuda", "is_meta", "is_sparse", "is_quantized", "is_mkldnn",
    "is_nested", "is_floating_point", "is_complex", "is_signed", "is_inference", "itemsize",
    "element_size", "names", "__hash__", "type",
])  # fmt: skip
# Functions whose result, or its shape, depends on the elements of a tensor.
ELEMENT_READING_FUNCTIONS = frozenset([
    "__bool__", "__int__", "__float__", "__index__", "__complex__", "__contains__",
    "__array__", "item", "tolist", "numpy", "equal", "allclose", "is_nonzero", "nonzero",
    "argwhere", "unique", "unique_consecutive", "masked_select", "bincount",
    "_pack_padded_sequence", "_nested_tensor_from_mask_left_aligned",
])  # fmt: skip
# Functions whose result depends on random numbers or on uninitialized memory.
RANDOM_FUNCTIONS = frozenset([
    "rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm",
    "normal", "bernoulli", "poisson", "multinomial", "rrelu", "dropout", "dropout1d",
    "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "feature_dropout",
    "gumbel_softmax", "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_",
    "normal_", "random_", "uniform_", "dropout_", "empty", "empty_like",
])  # fmt: skip


def function_name(function: Callable[..., Any]) -> str:
    """Return the name of a function, or of the attribute whose getter or setter it is.

    >>> import torch
    >>> function_name(torch.relu), function_name(torch.Tensor.shape.__get__)
    ('relu', 'shape')
    """
    name = getattr(function, "__name__", type(function).__name__)
    if name in ("__get__", "__set__"):
        return str(getattr(getattr(function, "__self__", None), "__name__", name))
    return str(name)


def reads_elements(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return True if the result of a function, or its shape, depends on elements of a tensor.

    Args:
        name: Name of the function.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.

    >>> import torch
    >>> mask = torch.tensor([True, False])
    >>> reads_elements("where", (mask,), {}), reads_elements("where", (mask, 1.0, 0.0), {})
    (True, False)
    >>> reads_elements("__getitem__", (mask, mask), {}), reads_elements("all", (mask,), {})
    (True, False)
    """
    if name == "where":
        return len(args) + len(kwargs) == 1
    if name == "__getitem__":
        return any(index.dtype in (torch.bool, torch.uint8) for index in tensor_leaves(args[1]))
    return name in ELEMENT_READING_FUNCTIONS


def is_discrete(tensor: Tensor) -> bool:
    """Return True for integers and booleans, which packets carry exactly."""
    return not tree.is_inexact(tensor)


def tensor_leaves(*trees: Any) -> list[Tensor]:
    """Return the tensors in arguments or results, including those in slices."""
    leaves: list[Tensor] = []
    for entry in tree.leaves(trees):
        if isinstance(entry, Tensor):
            leaves.append(entry)
        elif isinstance(entry, slice):
            leaves += tensor_leaves(entry.start, entry.stop, entry.step)
    return leaves


def mutated_tensors(versions: Iterable[tuple[Tensor, int]]) -> list[Tensor]:
    """Return the tensors that were changed in place since their version was read."""
    return [tensor for tensor, version in versions if tensor._version != version]

"""What kinds of functions PyTorch has, as far as one must know to skip them in a forward."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

# Of these the answer depends on neither the values nor the sizes of a tensor.
TYPES = frozenset(
    re.findall(
        r"\w+",
        """
        dtype device layout ndim dim ndimension requires_grad is_leaf grad_fn is_cpu is_cuda
        is_meta is_sparse is_quantized is_mkldnn is_nested is_floating_point is_complex
        is_signed is_inference itemsize element_size names __hash__ type
        """,
    )
)
# Of these it depends on values.
VALUES = frozenset(
    re.findall(
        r"\w+",
        """
        __bool__ __int__ __float__ __index__ __complex__ __contains__ __array__ item tolist
        numpy equal allclose is_nonzero nonzero argwhere unique unique_consecutive
        masked_select bincount
        """,
    )
)
# Of these it depends on chance, or on what was in the memory before.
RANDOM = frozenset(
    re.findall(
        r"\w+",
        """
        rand rand_like randn randn_like randint randint_like randperm normal bernoulli poisson
        multinomial rrelu dropout dropout1d dropout2d dropout3d alpha_dropout
        feature_alpha_dropout feature_dropout gumbel_softmax bernoulli_ cauchy_ exponential_
        geometric_ log_normal_ normal_ random_ uniform_ dropout_ empty empty_like
        """,
    )
)


def function_name(function: Callable[..., Any]) -> str:
    """The name of a function, of an attribute that is looked up, or of a type if it has none.

    >>> import torch
    >>> name_of(torch.relu), name_of(torch.Tensor.shape.__get__)
    ('relu', 'shape')
    """
    name = getattr(function, "__name__", type(function).__name__)
    if name in ("__get__", "__set__"):
        return str(getattr(getattr(function, "__self__", None), "__name__", name))
    return str(name)


def tensor_leaves(*trees: Any) -> list[Tensor]:
    """The tensors in arguments and results, those in slices too."""
    found: list[Tensor] = []
    for leaf in pytree.tree_leaves(trees):
        if isinstance(leaf, Tensor):
            found.append(leaf)
        elif isinstance(leaf, slice):
            found += tensor_leaves(leaf.start, leaf.stop, leaf.step)
    return found


def changed_tensors(before: Iterable[tuple[Tensor, int]]) -> list[Tensor]:
    """The tensors whose version is not what it was: they were changed in place."""
    return [tensor for tensor, version in before if tensor._version != version]

"""Norms and largest values of gradients."""

import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

Gradients: TypeAlias = Sequence[Tensor | None]
"""A gradient for each weight; None for a weight without one."""


def total_norm(gradients: Gradients) -> Tensor:
    """Return the Euclidean norm of all gradients together, a scalar; 0 if there are none."""
    return norm_of_norms(tensor_norms(gradients))


def tensor_norms(gradients: Iterable[Tensor | None]) -> list[Tensor]:
    """Return the Euclidean norm of each gradient, a scalar; None is left out."""
    dense = [
        dense_values(gradient) if gradient.is_sparse or gradient.itemsize == 1 else gradient
        for gradient in gradients
        if gradient is not None
    ]
    if len({(type(tensor), tensor.dtype, tensor.device) for tensor in dense}) == 1:
        return list(torch._foreach_norm(dense))
    return [torch.linalg.vector_norm(tensor).to(dense[0].device) for tensor in dense]


def largest_values(values: Sequence[Tensor]) -> list[Tensor]:
    """Return the largest absolute value of each tensor, a scalar that is NaN if one of them is.

    Unlike a Euclidean norm it is finite if all numbers are. Integers count as 0, and complex
    numbers as their two parts.

    Args:
        values: Tensors of any shapes, also empty ones.
    """
    searched = [_real_numbers(value) for value in values]
    if not all([tensor.is_cuda for tensor in searched]):
        # Faster than `vector_norm` with `ord=inf`, which PyTorch does not vectorize on a CPU.
        bounds = [torch.aminmax(tensor) for tensor in searched]
        return [torch.maximum(-least, most) for least, most in bounds]
    alike: dict[object, list[Tensor]] = {}  # a single kernel searches tensors of one kind
    kinds = [(tensor.dtype, tensor.device) for tensor in searched]
    for kind, tensor in zip(kinds, searched, strict=True):
        alike.setdefault(kind, []).append(tensor)
    found = {kind: iter(torch._foreach_norm(alike[kind], math.inf)) for kind in alike}
    return [next(found[kind]) for kind in kinds]


def _real_numbers(tensor: Tensor) -> Tensor:
    """Return the numbers of a tensor, at least one of them, as a dense tensor of real ones."""
    numbers = dense_values(tensor)
    if numbers.is_complex():
        numbers = torch.view_as_real(numbers.resolve_conj())
    if numbers.is_floating_point() and numbers.numel():
        return numbers
    return torch.zeros(1, device=tensor.device)


def norm_of_norms(norms: list[Tensor]) -> Tensor:
    """Return the norm of all tensors whose norms these are, a scalar; 0 if there are none."""
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())


def dense_values(tensor: Tensor) -> Tensor:
    """Return the numbers (N, ...) of a sparse tensor, and float8 as float32; others as is."""
    numbers = tensor.coalesce().values() if tensor.is_sparse else tensor
    is_float8 = numbers.itemsize == 1 and numbers.is_floating_point()  # which has no norm
    return numbers.float() if is_float8 else numbers

"""Accumulation of the gradients of several batches into one update, and their largest norm."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from hocket.options.common_options import Reduce

Gradients: TypeAlias = Sequence[Tensor | None]
"""A gradient for each weight; None for a weight without one."""


class GradientAccumulator:
    """Sum of the gradients since the last update, kept apart from ``grad`` of the parameters.

    A backward leaves the gradients of one batch in ``grad``; ``add`` moves them here, so that
    ``grad`` is empty between actions and the gradients of each batch can be looked at alone.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], reduce: Reduce) -> None:
        self._parameters = parameters
        self._reduce = reduce
        self._sums: list[Tensor | None] = [None] * len(parameters)
        self.count = 0  # batches since the last update

    def add(self, clip: Callable[[Gradients], Gradients] = list) -> list[Tensor | None]:
        """Move the gradients of one batch out of ``grad``, and return them.

        Args:
            clip: Returns the gradients to add instead.
        """
        gradients = self.take()
        added = clip(gradients)
        if self.count:
            self._sums = [
                gradient if total is None else total if gradient is None else total + gradient
                for total, gradient in zip(self._sums, added, strict=True)
            ]
        else:
            self._sums = list(added)
        self.count += 1
        return gradients

    def take(self) -> list[Tensor | None]:
        """Take the gradients of one batch out of ``grad``, and return them."""
        gradients = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        return gradients

    def reduce(self, clip: Callable[[Gradients], Gradients] = list) -> None:
        """Put the mean or the sum into ``grad`` and begin again with none.

        What was accumulated for a weight that is frozen by now is discarded.

        Args:
            clip: Returns the gradients to put there instead of these.
        """
        pairs = zip(self._parameters, self._sums, strict=True)
        sums = [total if parameter.requires_grad else None for parameter, total in pairs]
        if self._reduce == "mean" and self.count > 1:
            # Not in place: a sum of one gradient is that gradient, which the caller may hold.
            sums = [None if s is None else s / self.count for s in sums]
        for parameter, total in zip(self._parameters, clip(sums), strict=True):
            parameter.grad = total
        self._sums = [None] * len(self._parameters)
        self.count = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the sums since the last update, and the number of batches in them."""
        return {"sums": list(self._sums), "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of an accumulator of the same parameters."""
        self._sums = [
            None if total is None else total.to(parameter.device)
            for total, parameter in zip(state["sums"], self._parameters, strict=True)
        ]
        self.count = state["count"]


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

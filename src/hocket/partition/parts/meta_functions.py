"""Results of functions on PyTorch's meta device, where they have shapes and no numbers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hocket.partition.recording.intercept import Function
from hocket.partition.recording.torch_functions import (
    RANDOM_FUNCTIONS,
    function_name,
    mutated_tensors,
    reads_elements,
)
from hocket.tree import flatten, map_leaves, unflatten

META = torch.device("meta")
MOST_KNOWN = 10_000
"""Number of results to remember at most; each forward may have new numbers and shapes."""
# Scalars among their arguments are sizes.
_SIZED = ("view", "reshape", "expand", "narrow", "unflatten", "new_zeros", "new_ones")
_PLAIN = (
    int, float, bool, str, type(None), type(...), torch.dtype, torch.device, torch.layout,
    torch.memory_format,
)  # fmt: skip


class MetaFunctions:
    """Results of functions on the meta device, computed once for equal arguments.

    Many of PyTorch's kernels for that device are written in Python, and take a hundred times as
    long as those that compute numbers.
    """

    def __init__(self) -> None:
        self._known: dict[Any, tuple[list[Any], Any]] = {}

    def run(
        self,
        function: Function,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        operands: list[Tensor],
    ) -> tuple[Any, list[Tensor]]:
        """Run a function on meta tensors in place of its operands.

        Args:
            function: The function.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            operands: The tensors in them.

        Returns:
            The result on the meta device, and the operands that the function changes in place.
        """
        leaves, spec = flatten((args, kwargs))
        sized = function_name(function) in _SIZED

        # Look the result up, by all that decides its shapes.
        try:
            described = [_describe(leaf, sized) for leaf in leaves]
            signature = (function, torch.get_default_dtype(), spec, *described)
            known = self._known.get(signature)
        except TypeError:  # an argument is of another kind, or has no hash
            return _run_on_meta(function, args, kwargs, operands)

        # Run an unknown function, and remember the shapes of new tensors.
        if known is None:
            output, mutated = _run_on_meta(function, args, kwargs, operands)
            results, output_spec = flatten(output)
            if not mutated and _are_new(results, operands):
                forms = [(r.shape, r.stride(), r.dtype) for r in results]
                if len(self._known) >= MOST_KNOWN:
                    self._known.clear()
                self._known[signature] = forms, output_spec
            return output, mutated

        # Make tensors of the known shapes.
        forms, output_spec = known
        results = [
            torch.empty_strided(shape, stride, dtype=dtype, device=META)
            for shape, stride, dtype in forms
        ]
        return unflatten(results, output_spec), []


def _run_on_meta(
    function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], operands: list[Tensor]
) -> tuple[Any, list[Tensor]]:
    """Run a function on meta tensors as `MetaFunctions.run` does, whether it is known or not.

    Raises:
        RuntimeError: The function needs numbers.
    """
    # Operands without numbers, but for sizes.
    name = function_name(function)
    sizes = {id(t) for t in operands if not t.dim() and name in _SIZED}
    meta = {id(t): t if t.is_meta or id(t) in sizes else t.to(META) for t in operands}
    versions = [(t, t._version) for t in meta.values()]

    def run(device: torch.device, tensors: dict[int, Tensor]) -> Any:
        def replace(entry: Any) -> Any:
            if isinstance(entry, Tensor):
                return tensors[id(entry)]
            if isinstance(entry, slice):
                return slice(replace(entry.start), replace(entry.stop), replace(entry.step))
            return device if isinstance(entry, torch.device) else entry

        replaced_args, replaced_kwargs = map_leaves(replace, (args, kwargs))
        with torch.no_grad(), device:
            return function(*replaced_args, **replaced_kwargs)

    # Run on them; without a kernel for that, on zeros.
    try:
        output = run(META, meta)
    except RuntimeError as error:  # no kernel for meta tensors, or for this type of them
        if name in RANDOM_FUNCTIONS or reads_elements(name, args, kwargs):
            raise
        try:
            output = _run_on_numbers(run, meta)
        except Exception:
            raise error from None
    mutated = {id(t) for t in mutated_tensors(versions)}
    return output, [t for t in operands if id(meta[id(t)]) in mutated]


def _run_on_numbers(
    run: Callable[[torch.device, dict[int, Tensor]], Any], meta: dict[int, Tensor]
) -> Any:
    """Run a function on zeros and on ones, to find results that do not depend on them.

    Raises:
        ValueError: There is more in the results than new tensors, or their shapes differ.
    """
    cpu, found = torch.device("cpu"), []
    for number in (0, 1):
        full = {key: torch.full_like(t, number, device=cpu) for key, t in meta.items()}
        versions = [(t, t._version) for t in full.values()]
        results, spec = flatten(run(cpu, full))
        given = {t.untyped_storage().data_ptr() for t in full.values()}
        if mutated_tensors(versions) or any(
            type(r) is not Tensor or r.untyped_storage().data_ptr() in given for r in results
        ):
            raise ValueError
        found.append((spec, [(r.shape, r.stride(), r.dtype) for r in results]))
    if found[0] != found[1]:
        raise ValueError
    return unflatten([result.to(META) for result in results], spec)


def _describe(leaf: Any, sized: bool) -> Any:
    """Return all that a function's result depends on, of one leaf of its arguments.

    Scalars among the arguments of a ``sized`` function are sizes.

    Raises:
        TypeError: It has properties that decide the result and are not compared.
    """
    if type(leaf) in (Tensor, nn.Parameter):
        if leaf.layout is not torch.strided or (sized and not leaf.dim()):
            raise TypeError("a sparse tensor, or a size")
        return leaf.dtype, leaf.shape, leaf.stride()
    if isinstance(leaf, slice):
        ends = (leaf.start, leaf.stop, leaf.step)
        return slice, *[_describe(end, sized) for end in ends]
    if type(leaf) in _PLAIN:
        return type(leaf), leaf  # for 1, 1.0 and True are equal
    raise TypeError(f"an object of {type(leaf).__name__}")


def _are_new(results: list[Any], operands: list[Tensor]) -> bool:
    """Return True for tensors that can be built again from shapes, strides and types alone."""
    given = {id(operand) for operand in operands}
    return len(given | {id(each) for each in results}) == len(given) + len(results) and all(
        type(result) is Tensor and result.is_meta and not result.storage_offset()
        for result in results
    )

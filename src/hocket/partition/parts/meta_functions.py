"""Results of functions on PyTorch's meta device, where they have shapes and no numbers."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from hocket.partition.recording.intercept import Function
from hocket.partition.recording.torch_functions import (
    RANDOM_FUNCTIONS,
    function_name,
    mutated_tensors,
    reads_elements,
)
from hocket.tree import flatten, map_leaves, unflatten

META = torch.device("meta")
Run = Callable[[torch.device, dict[int, Tensor]], Any]
"""Function that runs a call with these tensors, by the ids of its operands."""
_LOGGER = logging.getLogger("torch._subclasses.fake_tensor")
MOST_KNOWN = 10_000
"""Number of results to remember at most; each forward may have new numbers and shapes."""
# Scalars among their arguments are sizes.
_SIZED = ("view", "reshape", "expand", "narrow", "unflatten", "new_zeros", "new_ones")
PLAIN = frozenset([
    int, float, bool, str, type(None), type(...), torch.dtype, torch.device, torch.layout,
    torch.memory_format,
])  # fmt: skip


def empty_like(value: Tensor, device: torch.device = META) -> Tensor:
    """Return a tensor of the same shape, strides and type, by default on the meta device."""
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)


@contextmanager
def fake_tensors() -> Iterator[None]:
    """Context manager in which kernels run on tensors that have a device and no numbers.

    PyTorch writes no trace of failures, which are expected.
    """
    disabled, _LOGGER.disabled = _LOGGER.disabled, True
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            yield
    finally:
        _LOGGER.disabled = disabled


class MetaFunctions:
    """Results of functions on the meta device, computed once for equal arguments.

    Many of PyTorch's kernels for that device are written in Python, and take a hundred times as
    long as those that compute numbers.
    """

    def __init__(self) -> None:
        self._known: dict[Any, tuple[list[Tensor], Any]] = {}

    def run(
        self,
        function: Function,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        operands: list[Tensor],
        device: torch.device,
    ) -> tuple[Any, list[Tensor]]:
        """Run a function on meta tensors in place of its operands.

        Args:
            function: The function.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            operands: The tensors in them.
            device: Device on which the function would compute.

        Returns:
            The result on the meta device, and the operands that the function changes in place.
        """
        leaves, spec = flatten((args, kwargs))
        sized = function_name(function) in _SIZED

        # Look the result up, by all that decides its shapes.
        try:
            described = [_describe(leaf, sized) for leaf in leaves]
            types = torch.get_default_dtype(), autocast_type(device)
            signature = (function, types, spec, *described)
            known = self._known.get(signature)
        except TypeError:  # an argument is of another kind, or has no hash
            return _run_on_meta(function, args, kwargs, operands, device)

        # Run an unknown function, and remember the shapes of new tensors.
        if known is None:
            output, mutated = _run_on_meta(function, args, kwargs, operands, device)
            results, output_spec = flatten(output)
            if not mutated and _are_new(results, operands):
                if len(self._known) >= MOST_KNOWN:
                    self._known.clear()
                self._known[signature] = list(map(empty_like, results)), output_spec
            return output, mutated

        # Make tensors of the known shapes.
        results, output_spec = known
        return unflatten(list(map(empty_like, results)), output_spec), []


def autocast_type(device: torch.device) -> torch.dtype | None:
    """Return the type that autocast computes in on a device; None where it is off."""
    on = torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if on else None


def _run_on_meta(
    function: Function,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    operands: list[Tensor],
    device: torch.device,
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
    except RuntimeError as error:  # no kernel for META, or for types that autocast would change
        if name in RANDOM_FUNCTIONS or reads_elements(name, args, kwargs):
            raise
        try:
            output = _run_on_numbers(device, run, meta)
        except Exception:
            raise error from None
    mutated = {id(t) for t in mutated_tensors(versions)}
    if not mutated and autocast_type(device) is not None:
        output = _cast_as_on(device, run, meta, output)
    return output, [t for t in operands if id(meta[id(t)]) in mutated]


def _cast_as_on(device: torch.device, run: Run, meta: dict[int, Tensor], output: Any) -> Any:
    """Return the output with the types that autocast, which leaves META alone, gives it."""
    results, spec = flatten(output)
    if not _are_new(results, list(meta.values())):  # a view or a size, whose type stays
        return output
    try:
        with fake_tensors():
            fakes = {key: empty_like(t, device) for key, t in meta.items()}
            typed, _ = flatten(run(device, fakes))
    except Exception:  # no kernel for fake tensors: autocast knows no such function
        return output
    return unflatten([r.to(t.dtype) for r, t in zip(results, typed, strict=True)], spec)


def _run_on_numbers(device: torch.device, run: Run, meta: dict[int, Tensor]) -> Any:
    """Run a function on zeros and on ones, to find results that do not depend on them.

    Raises:
        ValueError: There is more in the results than new tensors, or their shapes differ.
    """
    found = []
    for number in (0, 1):
        full = {key: torch.full_like(t, number, device=device) for key, t in meta.items()}
        versions = [(t, t._version) for t in full.values()]
        results, spec = flatten(run(device, full))
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
    if type(leaf) in PLAIN:
        return type(leaf), leaf  # for 1, 1.0 and True are equal
    raise TypeError(f"an object of {type(leaf).__name__}")


def _are_new(results: list[Any], operands: list[Tensor]) -> bool:
    """Return True for tensors that can be built again from shapes, strides and types alone."""
    given = {id(operand) for operand in operands}
    return len(given | {id(each) for each in results}) == len(given) + len(results) and all(
        type(result) is Tensor and result.is_meta and not result.storage_offset()
        for result in results
    )

"""Outputs of functions and modules as tensors on PyTorch's meta device.

Meta tensors have a shape and a type but no memory.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call

from hocket.partition.intercept import Function
from hocket.partition.torch_functions import mutated_tensors
from hocket.tree import flatten, map_leaves, unflatten

META = torch.device("meta")
BuildLeaf = Callable[[list[Any]], Any]
"""Function from the leaves of a call's arguments to a leaf of its output."""


def to_meta(value: Tensor) -> Tensor:
    """Return a meta tensor of the same shape, strides and type."""
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=META)


def run_on_meta(
    function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], operands: list[Tensor]
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
    meta = {id(t): t if t.is_meta else t.to(META) for t in operands}
    versions = [(t, t._version) for t in meta.values()]

    def replace(entry: Any) -> Any:
        if isinstance(entry, Tensor):
            return meta[id(entry)]
        if isinstance(entry, slice):
            return slice(replace(entry.start), replace(entry.stop), replace(entry.step))
        return META if isinstance(entry, torch.device) else entry

    args, kwargs = map_leaves(replace, (args, kwargs))
    with torch.no_grad(), META:
        output = function(*args, **kwargs)
    mutated = {id(t) for t in mutated_tensors(versions)}
    return output, [t for t in operands if id(meta[id(t)]) in mutated]


class MetaModules:
    """Outputs of modules on the meta device, computed once for each shape of their inputs."""

    def __init__(self) -> None:
        self._builders: dict[Any, tuple[list[BuildLeaf], Any]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> "MetaModules":
        """Return an empty cache, because it is cheap to fill."""
        return MetaModules()

    def output(
        self,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        device: torch.device,
        *key: object,
    ) -> Any:
        """Return the module's output, with all new tensors on the meta device.

        Args:
            module: The module.
            args: Positional arguments of the call.
            kwargs: Keyword arguments of the call.
            device: Device on which the module would compute.
            key: Other values that its output depends on, the module's name first.
        """
        leaves, spec = flatten((args, kwargs))
        signature = (*key, spec, *map(_describe_argument, leaves))
        if signature not in self._builders:
            self._builders[signature] = _infer_output(module, leaves, spec, device)
        builders, output_spec = self._builders[signature]
        return unflatten([build(leaves) for build in builders], output_spec)


def _describe_argument(entry: Any) -> Any:
    """Return the properties of an argument that decide the shapes of the results."""
    if isinstance(entry, Tensor):
        return entry.dtype, tuple(entry.shape)
    return entry if isinstance(entry, bool | int | float | str | type(None)) else type(entry)


def _infer_output(
    module: nn.Module, leaves: list[Any], spec: Any, device: torch.device
) -> tuple[list[BuildLeaf], Any]:
    """Run a module on fake tensors to infer the shapes of its output.

    Args:
        module: The module.
        leaves: Leaves of its arguments.
        spec: Structure of its arguments.
        device: Device on which the module would compute.

    Returns:
        A builder for each leaf of the output, and the structure of the output.
    """

    def make_fake(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device=device
        )

    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        fake_leaves = [make_fake(entry) for entry in leaves]
        args, kwargs = unflatten(fake_leaves, spec)
        # Fake weights too: otherwise a counter in a buffer would be increased.
        weights = dict(module.named_parameters()) | dict(module.named_buffers())
        fake_weights = {name: make_fake(value) for name, value in weights.items()}
        output = functional_call(module, fake_weights, args, kwargs)
        results, output_spec = flatten(output)
    positions = {id(t): n for n, t in enumerate(fake_leaves) if isinstance(t, Tensor)}
    builders = [_make_leaf_builder(result, positions.get(id(result))) for result in results]
    return builders, output_spec


def _make_leaf_builder(result: Any, position: int | None) -> BuildLeaf:
    """Return a builder of one leaf of an output.

    Args:
        result: The leaf, a fake tensor or another object.
        position: Index of the argument that is returned as it is; None for a new object.
    """
    if position is not None:
        return lambda leaves: leaves[position]
    if not isinstance(result, Tensor):
        return lambda _: result
    shape, stride, dtype = tuple(result.shape), result.stride(), result.dtype
    return lambda _: torch.empty_strided(shape, stride, dtype=dtype, device=META)

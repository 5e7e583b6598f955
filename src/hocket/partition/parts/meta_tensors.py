"""Outputs of modules as tensors on PyTorch's meta device.

Meta tensors have a shape and a type but no memory.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hocket.errors import CutError
from hocket.partition.parts.copied_modules import copy_modules, copy_objects
from hocket.partition.parts.meta_functions import (
    MOST_KNOWN,
    PLAIN,
    MetaFunctions,
    autocast_type,
    empty_like,
    fake_tensors,
)
from hocket.partition.recording.recording import ForwardMode
from hocket.restore import changeable_weights, preserve_numpy_and_python
from hocket.tree import flatten, unflatten

BuildLeaf = Callable[[list[Any]], Any]
"""Function from the leaves of a call's arguments to a leaf of its output."""


class MetaModules:
    """Outputs of modules on the meta device, computed once for equal inputs and attributes.

    Those with other things than tensors, such as numbers, are computed every time: they may
    depend on more that a training changes.

    Attributes:
        functions: The same for functions.
    """

    def __init__(self) -> None:
        self.functions = MetaFunctions()
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
        name: str,
        mode: ForwardMode,
    ) -> Any:
        """Return the module's output, with all new tensors on the meta device.

        Args:
            module: The module.
            args: Positional arguments of the call.
            kwargs: Keyword arguments of the call.
            device: Device on which the module would compute.
            name: Name of the module in the network.
            mode: Mode of the forward.

        Raises:
            CutError: The module takes neither fake tensors nor zeros of these shapes.
        """
        leaves, spec = flatten((args, kwargs))
        types = {weight.dtype: None for weight in module.parameters()}
        described = (*map(_describe_argument, leaves), *_plain_attributes(module), *types)
        signature = (name, mode, autocast_type(device), spec, *described)
        known = self._builders.get(signature)
        if known is None:
            try:
                known, constant = _infer_output(module, leaves, spec, device)
            except Exception as error:
                reason = str(error).partition("\n")[0]
                raise CutError(
                    f"module {name!r} cannot be left out by a later stage, which needs the "
                    f"shapes of its output: {reason}; cut before it"
                ) from error
            if constant:
                if len(self._builders) >= MOST_KNOWN:
                    self._builders.clear()
                self._builders[signature] = known
        builders, output_spec = known
        return unflatten([build(leaves) for build in builders], output_spec)


def _plain_attributes(module: nn.Module) -> list[Any]:
    """Return the numbers, texts and tuples of them that are kept in a module and its layers."""
    return [
        value
        for layer in module.modules()
        for value in vars(layer).values()
        if type(value) in PLAIN or (type(value) is tuple and PLAIN.issuperset(map(type, value)))
    ]


def _describe_argument(entry: Any) -> Any:
    """Return the properties of an argument that decide the shapes of the results."""
    if isinstance(entry, Tensor):
        return entry.dtype, tuple(entry.shape)
    return (type(entry), entry) if type(entry) in PLAIN else type(entry)


def _infer_output(
    module: nn.Module, leaves: list[Any], spec: Any, device: torch.device
) -> tuple[tuple[list[BuildLeaf], Any], bool]:
    """Run a module on fake tensors, or else on zeros, to infer the shapes of its output.

    Returns:
        A builder for each leaf of the output with the structure of the output, and True if
        there is nothing but tensors in it.
    """

    def make_fake(value: Any) -> Any:
        return empty_like(value, device) if isinstance(value, Tensor) else value

    copies = copy_objects(leaves)
    try:
        with fake_tensors():
            output, used = _run_apart(module, copies, spec, make_fake)
    except Exception:
        # It reads elements, or calls a kernel without an implementation for fake tensors.
        output, used = _run_on_numbers(module, leaves, spec, device)
    results, output_spec = flatten(output)
    positions = {id(t): n for n, t in enumerate(used) if isinstance(t, Tensor)}

    def make_builder(result: Any) -> BuildLeaf:
        position = positions.get(id(result))
        if position is not None:  # an argument that is returned as it is
            return lambda leaves: leaves[position]
        if not isinstance(result, Tensor):
            return lambda _: result
        form = empty_like(result)
        return lambda _: empty_like(form)

    builders = list(map(make_builder, results))
    constant = all(isinstance(result, Tensor) or result is None for result in results)
    return (builders, output_spec), constant


def _run_on_numbers(
    module: nn.Module, leaves: list[Any], spec: Any, device: torch.device
) -> tuple[Any, list[Any]]:
    """Run a module on zeros and on ones, to see that its output does not depend on them.

    They are on the device of its weights, if it has any.

    Returns:
        The output, and the leaves that were used.

    Raises:
        CutError: The outputs differ in more than numbers.
    """
    for weight in (*module.parameters(), *module.buffers()):
        device = weight.device

    own = {id(w) for layer in module.modules() for w in changeable_weights(layer).values()}

    def make_full(value: Any, number: int) -> Any:
        if id(value) in own:  # which the forward may change
            return value.detach().clone().requires_grad_(value.requires_grad)
        if not isinstance(value, Tensor) or isinstance(value, nn.Parameter):
            return value
        return torch.full(value.shape, number, dtype=value.dtype, device=device)

    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        (zeros, first), (ones, used) = (
            _run_apart(module, copy_objects(leaves), spec, partial(make_full, number=number))
            for number in (0, 1)
        )
    if _describe_output(zeros, first) != _describe_output(ones, used):
        raise CutError("its structure or its shapes depend on numbers")
    return ones, used


def _describe_output(output: Any, used: list[Any]) -> Any:
    """Return all of an output that stages without its numbers rely on.

    The leaves of the arguments that were ``used`` may be in it.
    """
    leaves, spec = flatten(output)
    positions = {id(leaf): position for position, leaf in enumerate(used)}
    return spec, [
        (leaf.dtype, tuple(leaf.shape))
        if isinstance(leaf, Tensor)
        else positions.get(id(leaf), repr(leaf))
        for leaf in leaves
    ]


def _run_apart(
    module: nn.Module, leaves: list[Any], spec: Any, replace: Callable[[Any], Any]
) -> tuple[Any, list[Any]]:
    """Run a module on other arguments and weights, and restore what it changes in itself.

    Returns:
        The output, and the leaves of its arguments that ``replace`` has returned.
    """
    used = [replace(leaf) for leaf in leaves]
    args, kwargs = unflatten(used, spec)
    # Other buffers too: otherwise a counter would be increased.
    weights = dict(module.named_parameters()) | dict(module.named_buffers())
    attributes = {part: dict(vars(part)) for part in module.modules()}
    try:
        with preserve_numpy_and_python(), torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what the module itself will be told
            if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
                (copied,) = copy_modules([module])  # a scripted one takes no other weights
                return copied(*args, **kwargs), used
            replaced = {name: replace(value) for name, value in weights.items()}
            return functional_call(module, replaced, args, kwargs), used
    finally:
        for part, values in attributes.items():
            for name in [n for n, v in vars(part).items() if v is not values.get(n)]:
                del vars(part)[name]
            vars(part).update(values)

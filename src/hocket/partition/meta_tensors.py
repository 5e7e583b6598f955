"""Tensors without numbers, and what functions and modules would give for them.

They are on PyTorch's meta device: sizes and types without memory.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.utils import _pytree as pytree

from hocket.partition.intercept import Go
from hocket.partition.torch_functions import changed_tensors

META = torch.device("meta")
Maker = Callable[[list[Any]], Any]


def to_meta(value: Tensor) -> Tensor:
    """A tensor like it without numbers."""
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=META)


def meta_result(
    go: Go, args: tuple[Any, ...], kwargs: dict[str, Any], taken: list[Tensor]
) -> tuple[Any, list[Tensor]]:
    """What a function gives without numbers, and the tensors that it would change."""
    empty = {id(t): t if t.is_meta else t.to(META) for t in taken}
    versions = [(t, t._version) for t in empty.values()]

    def emptied(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return empty[id(leaf)]
        if isinstance(leaf, slice):
            return slice(emptied(leaf.start), emptied(leaf.stop), emptied(leaf.step))
        return META if isinstance(leaf, torch.device) else leaf

    args, kwargs = pytree.tree_map(emptied, (args, kwargs))
    with torch.no_grad(), META:
        output = go(*args, **kwargs)
    edited = {id(t) for t in changed_tensors(versions)}
    return output, [t for t in taken if id(empty[id(t)]) in edited]


class MetaModules:
    """What modules give, without numbers; found out once for each shape of their inputs."""

    def __init__(self) -> None:
        self._makers: dict[Any, tuple[list[Maker], Any]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> "MetaModules":
        """Empty, as it is soon full again."""
        return MetaModules()

    def output(
        self,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        device: torch.device,
        *key: object,
    ) -> Any:
        """The module's output.

        Args:
            module: The module.
            args: What it is called with.
            kwargs: The same, by keywords.
            device: Where it would compute.
            key: What else the output depends on, the module's name first.
        """
        flat, spec = pytree.tree_flatten((args, kwargs))
        asked = (*key, spec, *map(_described, flat))
        if asked not in self._makers:
            self._makers[asked] = _makers(module, flat, spec, device)
        makers, form = self._makers[asked]
        return pytree.tree_unflatten([make(flat) for make in makers], form)


def _described(leaf: Any) -> Any:
    """What of an argument decides the shape of results."""
    if isinstance(leaf, Tensor):
        return leaf.dtype, tuple(leaf.shape)
    return leaf if isinstance(leaf, bool | int | float | str | type(None)) else type(leaf)


def _makers(
    module: nn.Module, flat: list[Any], spec: Any, device: torch.device
) -> tuple[list[Maker], Any]:
    """How to make the results of a module without its numbers."""

    def imitated(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device=device
        )

    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        given = [imitated(leaf) for leaf in flat]
        args, kwargs = pytree.tree_unflatten(given, spec)
        # Imitations of its weights too: a count kept in a buffer would go on otherwise.
        weights = dict(module.named_parameters()) | dict(module.named_buffers())
        own = {name: imitated(value) for name, value in weights.items()}
        results, form = pytree.tree_flatten(functional_call(module, own, args, kwargs))
    same = {id(t): n for n, t in enumerate(given) if isinstance(t, Tensor)}
    return [_maker(result, same.get(id(result))) for result in results], form


def _maker(result: Any, place: int | None) -> Maker:
    if place is not None:
        return lambda flat: flat[place]
    if not isinstance(result, Tensor):
        return lambda _: result
    shape, stride, dtype = tuple(result.shape), result.stride(), result.dtype
    return lambda _: torch.empty_strided(shape, stride, dtype=dtype, device=META)

"""Restoration of random numbers and of layers after forwards that only look."""

import random
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

from hocket.modes import evaluation_mode

_OF_EVERY_LAYER = vars(nn.Module()).keys()
"""Attributes that PyTorch keeps in each layer; none of them is the user's own."""
_DEPTH = 8
"""Collections within each other that are looked into; one may hold itself."""
_COLLECTIONS = (list, deque, dict, OrderedDict, defaultdict, set)
_HOOKS = [name for name in _OF_EVERY_LAYER if name.endswith("_hooks")]


@contextmanager
def preserve_rng(devices: Iterable[torch.device] = ()) -> Iterator[None]:
    """Context manager that restores the generators of torch, NumPy and Python on exit.

    Args:
        devices: Devices that are used; generators of the GPUs among them are restored as well.
    """
    gpus = [device for device in devices if device.type == "cuda"]
    with preserve_numpy_and_python(), torch.random.fork_rng(devices=gpus):
        yield


@contextmanager
def preserve_numpy_and_python() -> Iterator[None]:
    """Context manager that restores the generators of NumPy and Python on exit."""
    python, numpy_ = random.getstate(), numpy.random.get_state(legacy=False)
    try:
        yield
    finally:
        random.setstate(python)
        numpy.random.set_state(numpy_)


def numpy_and_python_state() -> object:
    """Return the state of the generators of NumPy and Python, to be compared with another."""
    of_numpy = numpy.random.get_state(legacy=False)
    own = {
        name: value.tobytes() if isinstance(value, numpy.ndarray) else value
        for name, value in of_numpy["state"].items()
    }
    return random.getstate(), of_numpy | {"state": own}


@contextmanager
def restore_state(*modules: nn.Module) -> Iterator[None]:
    """Context manager that restores buffers, weights and attributes that forwards change.

    A layer that decides its sizes in its first forward keeps them. Attributes are left alone if
    a forward makes a change that lasts: installs hooks, adds layers or weights, or edits
    weights of PyTorch's layers. It may note there that it has.
    """
    layers = dict.fromkeys(layer for module in modules for layer in module.modules())
    states = [_LayerState(layer) for layer in layers if not _is_undecided(layer)]
    try:
        yield
    finally:
        # True if hooks, layers or weights are other ones, or were edited.
        lasting = any(state.describe_lasting() != state.lasting for state in states)
        with torch.no_grad():
            for state in states:
                state.restore(attributes=not lasting)


@contextmanager
def dry_run(*modules: nn.Module) -> Iterator[None]:
    """Context manager for forwards that only look: evaluation mode, all states as before."""
    devices = {weight.device for module in modules for weight in module.parameters()}
    with evaluation_mode(*modules), restore_state(*modules), preserve_rng(devices):
        yield


def changeable_weights(layer: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that a layer has itself and that its forward may change.

    PyTorch's layers have none: their forwards leave them alone.
    """
    if type(layer).__module__.startswith("torch.nn."):
        return {}
    return {name: p for name, p in layer._parameters.items() if p is not None}


def _is_undecided(layer: nn.Module) -> bool:
    weights = [*layer._parameters.values(), *layer._buffers.values()]
    return isinstance(layer, LazyModuleMixin) or any(
        weight is not None and is_lazy(weight) for weight in weights
    )


class _LayerState:
    """Buffers, weights and attributes of one layer, without its children."""

    def __init__(self, layer: nn.Module) -> None:
        self._layer = layer
        self._buffers = dict(layer._buffers)
        own = changeable_weights(layer)
        kept = [*own.values(), *(b for b in self._buffers.values() if b is not None)]
        self._restore_kept = [_snapshot(tensor) for tensor in kept]
        self._others = [p for name, p in layer._parameters.items() if name not in own]
        self.lasting = self.describe_lasting()
        self._attributes = {
            name: (value, _snapshot(value))
            for name, value in vars(layer).items()
            if name not in _OF_EVERY_LAYER
        }

    def describe_lasting(self) -> object:
        """Return all that a forward changes for longer than itself, to be compared."""
        layer = self._layer
        return (
            [len(getattr(layer, name)) for name in _HOOKS],
            [(name, id(child)) for name, child in layer._modules.items()],
            [(name, id(weight)) for name, weight in layer._parameters.items()],
            [weight._version for weight in self._others if weight is not None],
        )

    def restore(self, *, attributes: bool) -> None:
        """Restore buffers and weights that have changed, and attributes if asked for."""
        for restore in self._restore_kept:
            restore()
        buffers = self._layer._buffers
        for name, buffer in self._buffers.items():
            if name not in buffers or buffers[name] is not buffer:
                buffers[name] = buffer
        if not attributes:
            return
        # Remove new attributes, and restore those that have changed.
        own = vars(self._layer)
        for name in [n for n in own if n not in self._attributes and n not in _OF_EVERY_LAYER]:
            del own[name]
        for name, (value, restore) in self._attributes.items():
            if own.get(name) is not value:
                own[name] = value
            restore()


def _snapshot(value: Any, depth: int = _DEPTH) -> Callable[[], object]:
    """Return a function that gives a tensor, an array or a plain collection what it has now."""
    if isinstance(value, Tensor):
        return _snapshot_tensor(value)
    if isinstance(value, numpy.ndarray):
        return partial(numpy.copyto, value, value.copy())
    if isinstance(value, torch.Generator):
        return partial(value.set_state, value.get_state())
    if depth == 0 or type(value) not in _COLLECTIONS:
        return _do_nothing
    kept = value.copy()
    members = kept.values() if isinstance(kept, dict) else kept
    restores = [_snapshot(each, depth - 1) for each in members]

    def refill() -> None:
        value.clear()
        fill = value.extend if isinstance(value, list | deque) else value.update
        fill(kept)
        for restore in restores:
            restore()

    return refill


def _do_nothing() -> None:
    """Leave as it is what cannot be changed, or is an object of the user's own."""


def _snapshot_tensor(tensor: Tensor) -> Callable[[], object]:
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_inference():
        return _do_nothing
    kept, version = tensor.detach().clone(), tensor._version

    def restore() -> None:
        if tensor.shape != kept.shape:  # such as a buffer of an observer
            tensor.set_(kept)  # type: ignore[call-overload]
        # An expanded one cannot be edited. An edit of the data does not raise its version.
        elif 0 not in tensor.stride() and (tensor._version != version or _differ(tensor, kept)):
            tensor.copy_(kept)

    return restore


def _differ(one: Tensor, other: Tensor) -> bool:
    try:
        return not torch.equal(one, other)
    except NotImplementedError:  # for some types of low precision
        return True

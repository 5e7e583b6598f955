"""What forwards that only look change: random numbers, and the state of layers."""

import random
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

from hocket.modes import evaluation_mode

_OF_EVERY_LAYER = vars(nn.Module()).keys()
"""Attributes that PyTorch keeps in each layer; none of them is the user's own."""
_COLLECTIONS = (list, dict, set, OrderedDict, defaultdict)


@contextmanager
def preserve_rng(devices: Iterable[torch.device] = ()) -> Iterator[None]:
    """Context manager that restores the generators of torch, NumPy and Python on exit.

    Args:
        devices: Devices that are used; those of the GPUs among them are restored as well.
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
    a forward installs hooks, as it may note there that it has.
    """
    layers = dict.fromkeys(layer for module in modules for layer in module.modules())
    states = [_LayerState(layer) for layer in layers if not _is_undecided(layer)]
    try:
        yield
    finally:
        installed = any(state.has_new_hooks() for state in states)
        with torch.no_grad():
            for state in states:
                state.restore_tensors()
                if not installed:
                    state.restore_attributes()


@contextmanager
def dry_run(*modules: nn.Module) -> Iterator[None]:
    """Context manager for forwards that only look: evaluation mode, and a state as before."""
    with evaluation_mode(*modules), restore_state(*modules):
        yield


def changeable_weights(layer: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that a layer has itself and that its forward may change.

    Those of PyTorch's layers are none: their forwards leave them alone.
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
    """Buffers, weights and attributes of one layer, without those of its children."""

    def __init__(self, layer: nn.Module) -> None:
        self._layer = layer
        self._buffers = dict(layer._buffers)
        self._hooks = _count_hooks(layer)
        weights = changeable_weights(layer).values()
        kept = [*weights, *(b for b in self._buffers.values() if b is not None)]
        self._values = [(tensor, tensor.detach().clone()) for tensor in kept]
        self._attributes = {
            name: (value, _copy(value))
            for name, value in vars(layer).items()
            if name not in _OF_EVERY_LAYER
        }

    def has_new_hooks(self) -> bool:
        """Return True if hooks were installed or removed."""
        return _count_hooks(self._layer) != self._hooks

    def restore_tensors(self) -> None:
        """Restore buffers and weights that have changed."""
        for tensor, value in self._values:
            _restore_tensor(tensor, value)
        buffers = self._layer._buffers
        for name, buffer in self._buffers.items():
            if buffers.get(name) is not buffer:
                buffers[name] = buffer

    def restore_attributes(self) -> None:
        """Restore attributes that have changed, and remove new ones."""
        own = vars(self._layer)
        for name in [n for n in own if n not in self._attributes and n not in _OF_EVERY_LAYER]:
            del own[name]
        for name, (value, copy) in self._attributes.items():
            if own.get(name) is not value:
                own[name] = value
            if type(value) in _COLLECTIONS:
                _restore_collection(value, copy)


def _count_hooks(layer: nn.Module) -> int:
    return sum(len(value) for name, value in vars(layer).items() if name.endswith("_hooks"))


def _copy(value: Any) -> Any:
    """Return a shallow copy of a plain collection, and anything else as it is."""
    return value.copy() if type(value) in _COLLECTIONS else value


def _restore_collection(value: Any, copy: Any) -> None:
    """Give a collection the members that it had.

    Args:
        value: The collection.
        copy: A copy from before.
    """
    if isinstance(value, list):
        value[:] = copy
    else:
        value.clear()
        value.update(copy)


def _restore_tensor(tensor: Tensor, value: Tensor) -> None:
    """Give a tensor the numbers and the shape that it had, in place.

    Args:
        tensor: The tensor.
        value: A copy from before.
    """
    if tensor.shape != value.shape:  # such as a buffer of an observer
        tensor.set_(value)  # type: ignore[call-overload]
    elif 0 not in tensor.stride() and not torch.equal(tensor, value):
        tensor.copy_(value)  # an expanded one cannot be edited

"""A forward on a sample, watched: who calls whom, and which values pass between them."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hocket.errors import CutError
from hocket.partition.intercept import Go, call_intercepted, intercept
from hocket.partition.recording import Call, Frame, Read, Recording, Value, ValueKey
from hocket.partition.torch_functions import (
    RANDOM,
    TYPES,
    VALUES,
    changed_tensors,
    function_name,
    tensor_leaves,
)
from hocket.tree import Tree, tensors

_OWN = (os.path.dirname(torch.__file__), os.path.dirname(__file__))


def call_network(network: nn.Module, inputs: Tree) -> Any:
    """The network's output: a dict is passed by keywords, a tuple or list in turn."""
    if isinstance(inputs, dict):
        return network(**inputs)
    return network(*inputs) if isinstance(inputs, tuple | list) else network(inputs)


def sample_error(
    network: nn.Module, sample: Tree, error: Exception, where: str = ""
) -> CutError:
    """What to raise where the network fails on the sample, at one of its layers if told."""
    shapes = ", ".join(str(tuple(value.shape)) for value in tensors(sample))
    return CutError(
        f"cannot cut a {type(network).__name__} that does not take the sample, of shape "
        f"{shapes or 'none'}: {where}{error}; pass a batch of its inputs"
    )


def record_forward(network: nn.Module, sample: Tree) -> Recording:
    """What the network does with the sample, in the mode that it is in.

    Buffers and torch's random numbers are left as they were.
    """
    watch = ForwardRecorder(network)
    watch.enter(sample)
    with _unchanged(network), torch.enable_grad(), intercept(watch.names, watch):
        output = call_network(network, sample)
    return watch.recording(output)


@contextmanager
def _unchanged(network: nn.Module) -> Iterator[None]:
    kept = [(buffer, buffer.clone()) for buffer in network.buffers()]
    cuda = sorted({b.device.index for b in network.parameters() if b.is_cuda})
    try:
        with torch.random.fork_rng(devices=cuda):
            yield
    finally:
        with torch.no_grad():
            for buffer, was in kept:
                buffer.copy_(was)


@dataclass
class _Value:
    tensor: Tensor  # kept, so that no other gets its id
    keys: list[tuple[ValueKey, int]] = field(default_factory=list)
    last_use: float = -1
    changes: list[int] = field(default_factory=list)


class ForwardRecorder:
    """Lets everything happen and notes it.

    Args:
        network: What is to be watched.
    """

    def __init__(self, network: nn.Module) -> None:
        self.names = {module: name for name, module in network.named_modules()}
        self._weights = {
            id(tensor): name
            for entries in (network.named_parameters(), network.named_buffers())
            for name, tensor in entries
        }
        self._frames: list[Frame] = []
        self._calls: list[Call] = []
        self._values: dict[int, _Value] = {}
        self._uses: dict[str, tuple[int, int]] = {}
        self._reads: list[Read] = []
        self._strange: list[tuple[int, str]] = []
        self._now = 0

    def enter(self, inputs: Tree) -> None:
        """The tensors that the network is about to be called with."""
        self._register("", 0, tensor_leaves(inputs))

    def call(
        self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call the module, and note what it gave."""
        caller = self._frames[-1] if self._frames else None
        self._now += 1
        path = caller.step(name) if caller is not None else 0
        place, start = len(self._calls), self._now
        inside = tuple(frame.name for frame in self._frames)
        self._calls.append(Call(name, start, start, inside))
        self._frames.append(Frame(name))
        try:
            output = call_intercepted(module, args, kwargs)
        finally:
            self._frames.pop()
        self._now += 1
        self._calls[place] = Call(name, start, self._now, inside)
        if caller is not None:
            self._register(caller.name, path, tensor_leaves(output))
        return output

    def function(self, go: Go, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function, and note what it took and gave."""
        if not self._frames:
            return go(*args, **kwargs)
        frame = self._frames[-1]
        self._now += 1
        taken = tensor_leaves(args, kwargs)
        versions = [(tensor, tensor._version) for tensor in taken]
        output = go(*args, **kwargs)
        given, edited = tensor_leaves(output), changed_tensors(versions)
        name = function_name(go)
        varies = any(id(t) in self._values or id(t) in self._weights for t in taken)
        if given or edited:
            # Looks are no steps: hooks of others, such as counters, may look as they like.
            path = frame.step(name)
            self._use(taken)
            if varies or name in RANDOM:
                self._register(frame.name, path, given or edited)
            for tensor in edited:
                if id(tensor) in self._values:
                    self._values[id(tensor)].changes.append(self._now)
        if varies and (name in VALUES or not (given or edited or name in TYPES)):
            self._read(frame, name in VALUES, taken)
        return output

    def recording(self, output: Any) -> Recording:
        """All that was noted, once the network has given its output."""
        self._now += 1
        self._use(tensor_leaves(output))
        values = tuple(
            Value(
                keys=tuple(value.keys),
                made=value.keys[0][1],
                last_use=value.last_use,
                changes=tuple(value.changes),
                storage=value.tensor.untyped_storage()._cdata,
                shape=tuple(value.tensor.shape),
            )
            for value in self._values.values()
        )
        return Recording(
            calls=tuple(self._calls),
            values=values,
            weights=dict(self._uses),
            reads=tuple(self._reads),
            strange=tuple(self._strange),
        )

    def _register(self, frame: str, path: int, tensors: list[Tensor]) -> None:
        for place, tensor in enumerate(tensors):
            if id(tensor) not in self._weights:
                value = self._values.setdefault(id(tensor), _Value(tensor))
                value.keys.append((ValueKey(frame, path, place), self._now))

    def _use(self, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            if (name := self._weights.get(id(tensor))) is not None:
                first, _ = self._uses.get(name, (self._now, 0))
                self._uses[name] = first, self._now
            elif (value := self._values.get(id(tensor))) is not None:
                value.last_use = self._now
            elif tensor.grad_fn is not None:
                self._strange.append((self._now, _line()))

    def _read(self, frame: Frame, values: bool, tensors: list[Tensor]) -> None:
        if values:
            self._use(tensors)
        known = list(self._values)
        of = tuple(known.index(id(t)) for t in tensors if id(t) in self._values)
        if of:
            self._reads.append(Read(frame.name, self._now, _line(), values, of))


def _line() -> str:
    """The line of code that is neither PyTorch's nor of this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}, line {frame.f_lineno}"

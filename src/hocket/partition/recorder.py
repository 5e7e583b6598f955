"""Recorder of a network's forward on a sample."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hocket.errors import CutError
from hocket.partition.intercept import Function, call_intercepted, intercept
from hocket.partition.recording import Call, Frame, Recording, TensorQuery, Value, ValueKey
from hocket.partition.torch_functions import (
    ELEMENT_READING_FUNCTIONS,
    METADATA_FUNCTIONS,
    RANDOM_FUNCTIONS,
    function_name,
    mutated_tensors,
    tensor_leaves,
)
from hocket.tree import Tree, tensors

_LIBRARY_FOLDERS = (os.path.dirname(torch.__file__), os.path.dirname(__file__))


def call_network(network: nn.Module, inputs: Tree) -> Any:
    """Return the network's output; a dict is passed as keywords, a tuple or list in order."""
    if isinstance(inputs, dict):
        return network(**inputs)
    return network(*inputs) if isinstance(inputs, tuple | list) else network(inputs)


def sample_error(
    network: nn.Module, sample: Tree, error: Exception, where: str = ""
) -> CutError:
    """Return the error for a network whose forward fails on the sample.

    Args:
        network: The network.
        sample: Its inputs.
        error: Exception of the forward.
        where: Prefix of its message that names the layer, if known.
    """
    shapes = ", ".join(str(tuple(value.shape)) for value in tensors(sample))
    return CutError(
        f"cannot cut a {type(network).__name__} that does not take the sample, of shape "
        f"{shapes or 'none'}: {where}{error}; pass a batch of its inputs"
    )


def record_forward(network: nn.Module, sample: Tree) -> Recording:
    """Record the forward of a network on the sample, in its present mode.

    Buffers and PyTorch's random state are restored afterwards.
    """
    recorder = ForwardRecorder(network)
    recorder.register_inputs(sample)
    with (
        _restore_state(network),
        torch.enable_grad(),
        intercept(recorder.names, recorder),
    ):
        output = call_network(network, sample)
    return recorder.finish(output)


@contextmanager
def _restore_state(network: nn.Module) -> Iterator[None]:
    """Context manager that restores buffers and the random state afterwards."""
    saved = [(buffer, buffer.clone()) for buffer in network.buffers()]
    cuda = sorted({p.device.index for p in network.parameters() if p.is_cuda})
    try:
        with torch.random.fork_rng(devices=cuda):
            yield
    finally:
        with torch.no_grad():
            for buffer, value in saved:
                buffer.copy_(value)


@dataclass
class _TrackedValue:
    tensor: Tensor  # keeps the tensor alive, so that its id is not reused
    keys: list[tuple[ValueKey, int]] = field(default_factory=list)
    last_use: float = -1
    mutations: list[int] = field(default_factory=list)


class ForwardRecorder:
    """Interceptor that executes every step unchanged and records it.

    Args:
        network: Network to record.
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
        self._values: dict[int, _TrackedValue] = {}
        self._weight_uses: dict[str, tuple[int, int]] = {}
        self._queries: list[TensorQuery] = []
        self._untracked: list[tuple[int, str]] = []
        self._event = 0

    def register_inputs(self, inputs: Tree) -> None:
        """Register the tensors with which the network is called next."""
        self._register("", 0, tensor_leaves(inputs))

    def call(
        self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call the module and record its output.

        Args:
            name: Name of the module in the network.
            module: The module.
            args: Positional arguments of the call.
            kwargs: Keyword arguments of the call.
        """
        caller = self._frames[-1] if self._frames else None
        self._event += 1
        path = caller.step(name) if caller is not None else 0
        position, start = len(self._calls), self._event
        callers = tuple(frame.name for frame in self._frames)
        self._calls.append(Call(name, start, start, callers))
        self._frames.append(Frame(name))
        try:
            output = call_intercepted(module, args, kwargs)
        finally:
            self._frames.pop()
        self._event += 1
        self._calls[position] = Call(name, start, self._event, callers)
        if caller is not None:
            self._register(caller.name, path, tensor_leaves(output))
        return output

    def function(
        self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call the function and record its operands and results.

        Args:
            function: The function.
            args: Positional arguments of the call.
            kwargs: Keyword arguments of the call.
        """
        if not self._frames:
            return function(*args, **kwargs)
        frame = self._frames[-1]
        self._event += 1
        operands = tensor_leaves(args, kwargs)
        versions = [(tensor, tensor._version) for tensor in operands]
        output = function(*args, **kwargs)
        results, mutated = tensor_leaves(output), mutated_tensors(versions)
        name = function_name(function)
        varies = any(id(t) in self._values or id(t) in self._weights for t in operands)
        if results or mutated:
            # Queries are no steps: hooks of the user, such as counters, may query anything.
            path = frame.step(name)
            self._use(operands)
            if varies or name in RANDOM_FUNCTIONS:
                self._register(frame.name, path, results or mutated)
            for tensor in mutated:
                if id(tensor) in self._values:
                    self._values[id(tensor)].mutations.append(self._event)
        reads_elements = name in ELEMENT_READING_FUNCTIONS
        if varies and (
            reads_elements or not (results or mutated or name in METADATA_FUNCTIONS)
        ):
            self._record_query(frame, operands, reads_elements=reads_elements)
        return output

    def finish(self, output: Any) -> Recording:
        """Return the recording, after the network has returned its output."""
        self._event += 1
        self._use(tensor_leaves(output))
        values = tuple(
            Value(
                keys=tuple(value.keys),
                created=value.keys[0][1],
                last_use=value.last_use,
                mutations=tuple(value.mutations),
                storage=value.tensor.untyped_storage()._cdata,
                shape=tuple(value.tensor.shape),
            )
            for value in self._values.values()
        )
        return Recording(
            calls=tuple(self._calls),
            values=values,
            weights=dict(self._weight_uses),
            queries=tuple(self._queries),
            untracked=tuple(self._untracked),
        )

    def _register(self, frame: str, path: int, results: list[Tensor]) -> None:
        """Register the results of a step under their keys."""
        for position, tensor in enumerate(results):
            if id(tensor) not in self._weights:
                value = self._values.setdefault(id(tensor), _TrackedValue(tensor))
                value.keys.append((ValueKey(frame, path, position), self._event))

    def _use(self, operands: list[Tensor]) -> None:
        """Record that the present event needs the elements of these tensors."""
        for tensor in operands:
            if (name := self._weights.get(id(tensor))) is not None:
                first, _ = self._weight_uses.get(name, (self._event, 0))
                self._weight_uses[name] = first, self._event
            elif (value := self._values.get(id(tensor))) is not None:
                value.last_use = self._event
            elif tensor.grad_fn is not None:
                self._untracked.append((self._event, _user_line()))

    def _record_query(
        self, frame: Frame, operands: list[Tensor], *, reads_elements: bool
    ) -> None:
        """Record a query of these tensors."""
        if reads_elements:
            self._use(operands)
        known = list(self._values)
        indices = tuple(known.index(id(t)) for t in operands if id(t) in self._values)
        if indices:
            query = TensorQuery(frame.name, self._event, _user_line(), reads_elements, indices)
            self._queries.append(query)


def _user_line() -> str:
    """Return the running line of code outside PyTorch and this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARY_FOLDERS):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}, line {frame.f_lineno}"

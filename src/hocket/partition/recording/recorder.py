"""Recorder of a network's forward on a sample."""

import inspect
import math
import os
import sys
from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import replace
from numbers import Number
from traceback import walk_stack
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hocket.modes import evaluation_mode
from hocket.partition.recording.intercept import Function, call_intercepted, intercept
from hocket.partition.recording.recording import (
    EVALUATION,
    TRAINING,
    Call,
    ForwardMode,
    Frame,
    Recording,
    TensorQuery,
    Value,
    ValueKey,
)
from hocket.partition.recording.torch_functions import (
    METADATA_FUNCTIONS,
    QUERY_REMEDIES,
    RANDOM_FUNCTIONS,
    function_name,
    is_discrete,
    mutated_tensors,
    reads_elements,
    tensor_leaves,
)
from hocket.partition.sequential import has_plain_forward
from hocket.restore import numpy_and_python_state, preserve_rng, restore_state
from hocket.tree import Tree, leaves, map_tensors

# Code of `checkpoint` without the wrapper that keeps a compiler out of it.
_CHECKPOINT = inspect.unwrap(checkpoint).__code__
_LIBRARY_FOLDERS = tuple(
    os.path.join(folder, "")  # not those of torchvision
    for folder in (os.path.dirname(torch.__file__), os.path.dirname(os.path.dirname(__file__)))
)


def call_network(network: nn.Module, inputs: Tree) -> Any:
    """Return the network's output; a dict is passed as keywords, a tuple or list in order.

    An nn.Sequential gives them whole to its first layer, as its stages do.
    """
    if isinstance(inputs, Tensor) or has_plain_forward(network):
        return network(inputs)
    if isinstance(inputs, dict):
        return network(**inputs)
    return network(*inputs) if isinstance(inputs, tuple | list) else network(inputs)


def record_forward(network: nn.Module, sample: Tree, repeated: frozenset[str]) -> Recording:
    """Record the forward of a network on the sample, in its present mode.

    Buffers and PyTorch's random state are restored afterwards.

    Args:
        network: The network.
        sample: Its inputs.
        repeated: Modules in which every stage repeats what depends on discrete inputs only; see
            `Recording.repeated`.
    """
    recorder = ForwardRecorder(network, repeated)
    sample = map_tensors(Tensor.detach, sample)  # a tensor may be given for two inputs
    recorder.register_inputs(sample)
    with (
        preserve_rng(devices_of(network)),
        restore_state(network),
        torch.enable_grad(),
        intercept(recorder.names, recorder),
    ):
        output = call_network(network, sample)
    return recorder.finish(output)


def record_modes(
    network: nn.Module, samples: dict[ForwardMode, Tree], repeated: frozenset[str]
) -> dict[ForwardMode, Recording]:
    """Record the forward in all modes, as far as the network takes single inputs.

    Args:
        network: The network, in training mode.
        samples: Inputs for each mode. Those for evaluation become those for training if the
            network takes no other number of rows, as with graphs and time steps.
        repeated: Modules in which every stage repeats what depends on discrete inputs only.
    """
    recordings = {}
    for mode in samples:
        with nullcontext() if mode.training else evaluation_mode(network):
            try:
                recordings[mode] = record_forward(network, samples[mode], repeated)
            except Exception:
                if mode == TRAINING:
                    raise
                if mode == EVALUATION:
                    samples[mode] = samples[TRAINING]
                    recordings[mode] = record_forward(network, samples[mode], repeated)
                # BatchNorm, for example, cannot train on a single element.
    return recordings


def devices_of(network: nn.Module) -> set[torch.device]:
    """Return the devices of the parameters."""
    return {parameter.device for parameter in network.parameters()}


class ForwardRecorder:
    """Interceptor that executes every step unchanged and records it.

    Args:
        network: Network to record.
        repeated: Modules in which every stage repeats what depends on discrete inputs only. If
            there are any, discrete inputs are constants: every stage receives them.
    """

    def __init__(self, network: nn.Module, repeated: frozenset[str]) -> None:
        self._repeated = repeated
        self._decided: set[str] = set()
        self._constant_inputs: list[Value] = []
        self.names = {module: name for name, module in network.named_modules()}
        weights = (*network.named_parameters(), *network.named_buffers())
        self._weights = {id(tensor): name for name, tensor in weights}
        self._frames: list[Frame] = []
        self._calls: list[Call] = []
        self._values: dict[int, Value] = {}  # by the id of the tensor
        self._tensors: list[Tensor] = []  # kept alive, so that ids are not reused
        self._weight_uses: dict[str, tuple[int, int]] = {}
        self._queries: list[TensorQuery] = []
        self._untracked: list[tuple[int, str]] = []
        self._event = 0
        self._weight_read = -1  # last event that read elements of nothing but weights
        self._random_state = numpy_and_python_state()
        self._checkpoints: set[FrameType] = set()

    def register_inputs(self, inputs: Tree) -> None:
        """Register the tensors with which the network is called next."""
        for position, tensor in enumerate(tensor_leaves(inputs)):
            self._tensors.append(tensor)
            if is_discrete(tensor) and self._repeated:
                value = Value(last_use=math.inf)
                self._constant_inputs.append(value)
            else:
                origin: frozenset[str] | None = frozenset() if is_discrete(tensor) else None
                value = self._values.setdefault(id(tensor), Value(origin))
            value.register(ValueKey("", 0, position), self._event, tensor)

    def call(
        self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call the module and record its output; see the protocol."""
        # Begin the call, which is a step of its caller's path.
        caller = self._frames[-1] if self._frames else None
        self._notice_draws()
        self._event += 1
        checkpointed = self._enter_checkpoints()
        path = caller.step(name) if caller is not None else 0
        position, start, first_query = len(self._calls), self._event, len(self._queries)
        callers = tuple(frame.name for frame in self._frames)
        self._calls.append(Call(name, start, start, callers, checkpointed))
        self._frames.append(Frame(name))
        if isinstance(module, torch.jit.ScriptModule):
            # Its functions are not intercepted: it may use all that it is given or has.
            given = [*tensor_leaves(args, kwargs), *module.parameters(), *module.buffers()]
            self._use(given, unknown=self._has_unknown(given))

        # Run the module.
        try:
            output = call_intercepted(module, args, kwargs)
            self._notice_draws()
        finally:
            self._frames.pop()

        # End the call, and register its output.
        self._event += 1
        self._calls[position] = replace(self._calls[position], end=self._event)
        if caller is not None:
            if any(isinstance(leaf, Number) for leaf in leaves(output)):
                # What decided on the numbers that it returns is known to its caller.
                self._queries[first_query:] = [
                    replace(query, frame=caller.name) for query in self._queries[first_query:]
                ]
                if self._weight_read > start:
                    self._record_obstacle(
                        f"module {name!r} returns a number that depends on weights; return a "
                        "tensor"
                    )
            constants = {id(t) for t in tensor_leaves(args, kwargs)} - self._values.keys()
            results = tensor_leaves(output)
            if name in self._repeated:
                constants |= {id(t) for t in results} - self._values.keys()
            self._register(caller.name, path, results, constants=constants)
        return output

    def function(
        self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call the function and record its operands and results; see the protocol."""
        if not self._frames:
            return function(*args, **kwargs)

        # Run the function.
        frame = self._frames[-1]
        self._event += 1
        operands = tensor_leaves(args, kwargs)
        versions = [(tensor, tensor._version) for tensor in operands]
        unknown = self._has_unknown(operands)  # before a change in place gives it a graph
        output = function(*args, **kwargs)

        # Record what it used and made.
        results, mutated = tensor_leaves(output), mutated_tensors(versions)
        name = function_name(function)
        varies = any(id(t) in self._values or id(t) in self._weights for t in operands)
        reads = reads_elements(name, args, kwargs)
        if results or mutated:
            self._use(operands, unknown=unknown)
            # Only what may differ between stages is a step of the path. Queries are none: hooks
            # of the user, such as counters, may query anything.
            if varies or name in RANDOM_FUNCTIONS:
                self._enter_checkpoints()
                origin = None if name in RANDOM_FUNCTIONS else self._common_origin(operands)
                path = frame.step(name)
                # Dropout without effect, for example, returns a constant as it is.
                constants = {id(t) for t in operands} - {id(t) for t in mutated}
                self._register(
                    frame.name,
                    path,
                    results or mutated,
                    origin=origin,
                    constants=constants - self._values.keys(),
                )
                for tensor in mutated:
                    if (value := self._values.get(id(tensor))) is not None:
                        value.mutations.append(self._event)
                        value.origin = origin

        # Record a question about a tensor.
        if varies and (reads or not (results or mutated or name in METADATA_FUNCTIONS)):
            self._record_query(frame, name, operands, reads_elements=reads)
        return output

    def finish(self, output: Any) -> Recording:
        """Return the recording, after the network has returned its output."""
        self._event += 1
        outputs = tensor_leaves(output)
        self._use(outputs, unknown=self._has_unknown(outputs))
        return Recording(
            calls=tuple(self._calls),
            values=(*self._constant_inputs, *self._values.values()),
            weights=dict(self._weight_uses),
            queries=tuple(self._queries),
            untracked=tuple(self._untracked),
            repeated=frozenset(self._decided),
        )

    def _register(
        self,
        frame: str,
        path: int,
        results: list[Tensor],
        *,
        origin: frozenset[str] | None = None,
        constants: Collection[int] = (),
    ) -> None:
        """Register the results of a step under their keys.

        Args:
            frame: Module whose forward made the step.
            path: Its path, including the step.
            results: Tensors in the result of the step.
            origin: Modules that computed new tensors among them from discrete inputs only.
            constants: Ids of the tensors that are the same in every stage.
        """
        for position, tensor in enumerate(results):
            if id(tensor) in self._weights or id(tensor) in constants:
                continue
            if id(tensor) not in self._values:
                self._values[id(tensor)] = Value(origin)
                self._tensors.append(tensor)
            key = ValueKey(frame, path, position)
            self._values[id(tensor)].register(key, self._event, tensor)

    def _common_origin(self, operands: list[Tensor]) -> frozenset[str] | None:
        """Return the modules that compute from these operands; None if not only from inputs."""
        origin = frozenset(frame.name for frame in self._frames)
        for tensor in operands:
            value = self._values.get(id(tensor))
            if id(tensor) in self._weights or (value is not None and value.origin is None):
                return None
            if value is not None and value.origin is not None:
                origin |= value.origin
        return origin

    def _use(self, operands: list[Tensor], *, unknown: bool) -> None:
        """Record that the present event needs the elements of these tensors.

        ``unknown`` says that one of them has a graph of unknown origin.
        """
        for tensor in operands:
            if (name := self._weights.get(id(tensor))) is not None:
                first, _ = self._weight_uses.get(name, (self._event, 0))
                self._weight_uses[name] = first, self._event
            elif (value := self._values.get(id(tensor))) is not None:
                value.last_use = self._event
        if unknown:
            self._untracked.append((self._event, user_line()))

    def _has_unknown(self, tensors: list[Tensor]) -> bool:
        """Return True if one of these tensors has a graph and is of unknown origin."""
        return any(
            tensor.grad_fn is not None
            and id(tensor) not in self._values
            and id(tensor) not in self._weights
            for tensor in tensors
        )

    def _notice_draws(self) -> None:
        """Record that the running forward has drawn numbers from Python or NumPy."""
        if (state := numpy_and_python_state()) != self._random_state and self._frames:
            self._record_obstacle(
                "numbers of Python's random module or of NumPy are drawn before it, which "
                "differ between stages; draw them inside a module, or with torch"
            )
        self._random_state = state

    def _enter_checkpoints(self) -> bool:
        """Note the activation checkpoints that are running; return whether one is not new."""
        running = [f for f, _ in walk_stack(sys._getframe()) if f.f_code is _CHECKPOINT]
        known = self._checkpoints.intersection(running)
        self._checkpoints.update(running)
        if any(new.f_locals["use_reentrant"] for new in running if new not in known):
            self._record_obstacle(
                "reentrant activation checkpointing is before it; use use_reentrant=False, or "
                "call it inside a module"
            )
        return bool(known)

    def _record_obstacle(self, reason: str) -> None:
        """Record that no stage can begin after this step of the running forward."""
        frame = self._frames[-1].name
        self._queries.append(TensorQuery(frame, self._event, reason, True, ()))

    def _record_query(
        self, frame: Frame, name: str, operands: list[Tensor], *, reads_elements: bool
    ) -> None:
        """Record a query of these tensors by a function of PyTorch."""
        if reads_elements:
            self._use(operands, unknown=self._has_unknown(operands))
            self._decided |= self._common_origin(operands) or frozenset()
        values = tuple(self._values[id(t)] for t in operands if id(t) in self._values)
        if values:
            where = "; ".join((f"{name} in {user_line()}", *QUERY_REMEDIES.get(name, ())))
            reason = f"control flow depends on tensor values computed before it ({where})"
            query = TensorQuery(frame.name, self._event, reason, reads_elements, values)
            self._queries.append(query)
        elif reads_elements:
            self._weight_read = self._event
            self._record_obstacle(
                f"control flow depends on weights or buffers that are read before it "
                f"({user_line()})"
            )


def user_line() -> str:
    """Return the running line of code outside PyTorch and this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARY_FOLDERS):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}, line {frame.f_lineno}"

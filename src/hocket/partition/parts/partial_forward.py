"""One forward of a stage that is a part of a network's own forward."""

import sys
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from hocket.errors import CutError
from hocket.partition.parts.meta_tensors import MetaModules
from hocket.partition.parts.stage_span import StageSpan
from hocket.partition.recording.intercept import Function, call_intercepted, call_whole
from hocket.partition.recording.recorder import user_line
from hocket.partition.recording.recording import ForwardMode, Frame, ValueKey
from hocket.partition.recording.torch_functions import (
    RANDOM_FUNCTIONS,
    function_name,
    is_discrete,
    mutated_tensors,
    tensor_leaves,
)
from hocket.partition.shared_weights import replace_weights
from hocket.tree import Tree, flatten, map_tensors, unflatten


class StopForward(BaseException):
    """Signal that the forward reached the next stage; not an error, so not an Exception."""


_APPLY = torch.autograd.Function.apply.__code__


def _is_inside_autograd_function() -> bool:
    """Return True inside the forward of a custom autograd function, where gradients are off."""
    if torch.is_grad_enabled():
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _APPLY:
        frame = frame.f_back
    return frame is not None


@dataclass
class PartialForward:
    """Interceptor that executes the steps of one stage in a forward of the network.

    Steps before the stage yield meta tensors. Where the stage uses one that stands for a
    received value, it uses that value.

    Args:
        network: The network.
        modules: All its modules.
        span: The part to execute.
        mode: Mode of this forward.
        repeated: Modules in which each stage repeats what depends on discrete inputs only.
        meta_modules: Cached outputs of skipped modules.
        on_begin: Function to call when the stage begins, if any.
    """

    network: nn.Module
    modules: Collection[nn.Module]
    span: StageSpan
    mode: ForwardMode
    repeated: frozenset[str]
    meta_modules: MetaModules
    on_begin: Callable[[], None] | None
    frames: list[Frame] = field(default_factory=list)
    inside_whole_module: bool = False  # no cut point is inside the module that is running
    received: dict[ValueKey, Tensor] = field(default_factory=dict)
    met: set[ValueKey] = field(default_factory=set)  # received values that a step made
    received_weights: dict[str, Tensor] = field(default_factory=dict)
    substitutes: dict[int, Tensor] = field(default_factory=dict)  # by the id of a placeholder
    placeholders: list[Tensor] = field(default_factory=list)  # kept, so that ids are not reused
    placeholder_of: dict[int, Tensor] = field(
        default_factory=dict
    )  # by the id of a received value
    computed: dict[ValueKey, Tensor] = field(default_factory=dict)
    cleanup: ExitStack = field(default_factory=ExitStack)  # to be closed after the forward
    # Tensors that may differ between stages; all others are constants.
    varying: WeakIdKeyDictionary = field(default_factory=WeakIdKeyDictionary)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        begin, end = self.span.begin, self.span.end
        self.begun = begin is None
        self.begin = begin.name if begin is not None else None
        self.end = end.name if end is not None else None
        self.stepwise_modules = self.span.split_modules | self.repeated
        self.sent_keys = end.sent_keys(self.mode) if end is not None else ()

    def receive(self, values: list[Tensor]) -> None:
        """Set the values that the previous stage sent."""
        assert self.span.begin is not None
        keys, weights = self.span.begin.sent_keys(self.mode), self.span.begin.weights
        self.received = dict(zip(keys, values[: len(keys)], strict=True))
        self.received_weights = dict(zip(weights, values[len(keys) :], strict=True))
        for name, value in self.received_weights.items():
            # Code of the network may have read the parameter before the stage begins.
            self.substitutes[id(self.network.get_parameter(name))] = value
            self.varying[value] = True
        self.device = values[0].device if values else self.device

    def register_inputs(self, inputs: Tree) -> Tree:
        """Register the inputs of the network, and return those to call it with.

        If the code that depends on discrete inputs only is repeated, they are constants, and
        the forward gets copies of those that were received, which it may change.
        """
        leaves, structure = flatten(inputs)
        position = 0
        for index, leaf in enumerate(leaves):
            if not isinstance(leaf, Tensor):
                continue
            key = ValueKey("", 0, position)
            if self.repeated and is_discrete(leaf):
                received = self.received.get(key, leaf)
                self.met.add(key)
                leaves[index] = received.clone()
                self.computed[key] = received
            else:
                self._register_value(key, leaf)
            position += 1
        return unflatten(leaves, structure)

    def call(
        self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return the output of a module, or meta tensors if it is before the stage.

        Args:
            name: Name of the module in the network.
            module: The module.
            args: Positional arguments of the call.
            kwargs: Keyword arguments of the call.

        Raises:
            StopForward: The next stage begins with this call.
        """
        if self.inside_whole_module:
            return call_intercepted(module, args, kwargs)
        if not self.frames:
            return self._call_split(name, module, args, kwargs)
        frame = self.frames[-1]
        if self.begun and name == self.end:
            raise StopForward
        path = frame.step(name)
        if not self.begun and name == self.begin:
            self._require_all_received()
            self.begun = True
            self.cleanup.enter_context(replace_weights(self.network, self.received_weights))
            if self.on_begin is not None:
                self.on_begin()
        if name in self.stepwise_modules:
            output = self._call_split(name, module, args, kwargs)
        else:
            # Functions inside it, and queries of shapes here, are not steps of the path.
            self.inside_whole_module = True
            try:
                if self.begun:
                    output = self._execute(
                        module, self.substitute(args), self.substitute(kwargs)
                    )
                else:
                    output = self.meta_modules.output(
                        module,
                        self._without_received(args),
                        self._without_received(kwargs),
                        self.device,
                        name,
                        self.mode,
                    )
            finally:
                self.inside_whole_module = False
        if self.begun and not self.sent_keys:
            return self.substitute(output)  # no key of it will be asked for
        results = tensor_leaves(output)
        # A constant that the module returns as it is, or computes step by step, stays one.
        known = results if name in self.repeated else tensor_leaves(args, kwargs)
        constants = {id(t) for t in known if not self._varies(t)}
        self.register(frame.name, path, results, constants)
        return self.substitute(output)

    def _execute(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the output of a module of this stage.

        Args:
            module: The module.
            args: Positional arguments of the call.
            kwargs: Keyword arguments of the call.

        Raises:
            CutError: It fails, and an argument is neither received nor computed here.
            RuntimeError: It fails for another reason.
        """
        try:
            return call_whole(module, args, kwargs)
        except RuntimeError as error:
            if any(tensor.is_meta for tensor in tensor_leaves(args, kwargs)):
                raise CutError(
                    f"{self.span} is given a tensor without numbers: the forward took another "
                    "path than on the sample, or keeps a tensor in an attribute from batch to "
                    "batch; cut with a sample like the batches, let a module of its own keep "
                    "what is kept, or cut elsewhere"
                ) from error
            raise

    def _path_error(self, what: str, frame: str) -> CutError:
        """Return the error for a forward whose steps are not those of the sample.

        Args:
            what: Predicate about the stage.
            frame: Module in whose forward the steps are.
        """
        return CutError(
            f"{self.span} {what}: the forward of {frame!r} took another path than on the "
            "sample; cut with a sample like the batches, or cut elsewhere"
        )

    def function(
        self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return the result of a function, or meta tensors if it is before the stage.

        Args:
            function: The function.
            args: Positional arguments of the call.
            kwargs: Keyword arguments of the call.

        Raises:
            CutError: The function is before the stage, and has no result without numbers.
        """
        if self.inside_whole_module or not self.frames:
            return function(*args, **kwargs)
        if self.begun:
            args, kwargs = self.substitute(args), self.substitute(kwargs)
        else:
            args, kwargs = self._without_received(args), self._without_received(kwargs)
        name, operands = function_name(function), tensor_leaves(args, kwargs)
        # With an operand: `torch.device` itself has the same name, and none.
        if operands and name in ("device", "is_cuda", "is_cpu", "is_meta"):
            # Weights of other stages may be on another device than this stage computes on.
            of_other_stage = self.begin is not None and isinstance(operands[0], nn.Parameter)
            here = torch.empty(0, device=self.device)
            return function(here if operands[0].is_meta or of_other_stage else operands[0])
        any_meta = any([t.is_meta for t in operands])
        if self.begun and not self.sent_keys and not any_meta:
            return function(*args, **kwargs)  # no key of its results will be asked for
        varies = name in RANDOM_FUNCTIONS or any(map(self._varies, operands))
        if any_meta or (varies and not self.begun):
            try:
                functions = self.meta_modules.functions
                output, mutated = functions.run(function, args, kwargs, operands)
            except Exception as error:
                reason = str(error).partition("\n")[0]
                raise CutError(
                    f"{self.span} cannot leave out what is before it: {name} ({user_line()}) "
                    f"needs numbers: {reason}; cut before it, or move it into a module"
                ) from error
        else:
            versions = [(t, t._version) for t in operands]
            output = function(*args, **kwargs)
            mutated = mutated_tensors(versions)
        if varies and (results := tensor_leaves(output) or mutated):
            frame = self.frames[-1]
            constants = {id(t) for t in operands if not self._varies(t)}
            constants -= {id(t) for t in mutated}
            self.register(frame.name, frame.step(name), results, constants)
            # Not only where it is used: activation checkpointing keeps what it is given, and so
            # may objects. The forward of a custom autograd function must not return a received
            # value, which would become the output of that function.
            return output if _is_inside_autograd_function() else self.substitute(output)
        return output

    def _varies(self, tensor: Tensor) -> bool:
        """Return True if a tensor depends on weights, on random numbers, or on inputs.

        Discrete inputs do not count if the code that depends on them is repeated.
        """
        return id(tensor) in self.weights or tensor.is_meta or tensor in self.varying

    @cached_property
    def weights(self) -> set[int]:
        """Ids of the network's parameters and buffers."""
        return {
            id(weight)
            for module in self.modules
            for table in (module._parameters, module._buffers)
            for weight in table.values()
        }

    def _call_split(
        self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a module that several stages share, and intercept each step of its forward."""
        self.frames.append(Frame(name))
        try:
            return call_intercepted(module, args, kwargs)
        finally:
            self.frames.pop()

    def substitute(self, tree: Any) -> Any:
        """Return the same structure with received values in place of their placeholders."""
        if not self.substitutes:
            return tree
        return map_tensors(lambda t: self.substitutes.get(id(t), t), tree)

    def _without_received(self, tree: Any) -> Any:
        """Return the same structure with placeholders in place of received values.

        What is before the stage computes with the sizes of the sample, and received values have
        those of the batch.
        """
        if not self.placeholder_of:
            return tree
        return map_tensors(lambda t: self.placeholder_of.get(id(t), t), tree)

    def collect_sent(self) -> Tree:
        """Return the values to send to the next stage: a tensor, or a tuple of tensors.

        Raises:
            CutError: The forward took another path than on the sample.
        """
        missing = [key for key in self.sent_keys if key not in self.computed]
        if missing:
            raise self._path_error("did not compute what the next one needs", missing[0].frame)
        values = [self.substitute(self.computed[key]) for key in self.sent_keys]
        if self.span.end is not None:
            values += map(self._weight_to_send, self.span.end.weights)
        return values[0] if len(values) == 1 else tuple(values)

    def _require_all_received(self) -> None:
        """Check that a step before the stage stands for each value that it received.

        Raises:
            CutError: The forward took another path than on the sample.
        """
        if missing := [key for key in self.received if key not in self.met]:
            raise self._path_error("cannot tell what it received", missing[0].frame)

    def _weight_to_send(self, name: str) -> Tensor:
        """Return the weights of this batch: those that were received, or a copy of our own."""
        if name in self.received_weights:
            return self.received_weights[name]
        return self.network.get_parameter(name).clone()

    def register(
        self, frame: str, path: int, results: list[Tensor], constants: Collection[int] = ()
    ) -> None:
        """Register the tensors of a step under their keys.

        Args:
            frame: Module whose forward made the step.
            path: Its path, including the step.
            results: Tensors in the result of the step.
            constants: Ids of those that are the same in every stage.
        """
        for position, tensor in enumerate(results):
            if id(tensor) not in constants:
                self._register_value(ValueKey(frame, path, position), tensor)

    def _register_value(self, key: ValueKey, tensor: Tensor) -> None:
        self.varying[tensor] = True
        if key in self.received and not self.begun:
            self.met.add(key)
            received = self.received[key]
            self.placeholders.append(tensor)
            self.substitutes[id(tensor)] = received
            self.placeholder_of[id(received)] = tensor
            self.varying[received] = True
        if key in self.sent_keys:
            self.computed[key] = tensor

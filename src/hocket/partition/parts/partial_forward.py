"""One forward of a stage that is a part of a network's own forward.

The stage sees each step of the forward: the calls of modules and of functions. What it does
with a step depends on where the forward is. Steps before the stage yield meta tensors; steps in
it are executed with the received values; a module that no cut divides runs as a whole.
"""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Any

import torch
from torch import nn

from hocket.errors import CutError
from hocket.partition.parts.forward_values import ForwardValues
from hocket.partition.parts.meta_tensors import MetaModules
from hocket.partition.recording.intercept import Function, call_intercepted, call_whole
from hocket.partition.recording.recorder import user_line
from hocket.partition.recording.recording import Frame
from hocket.partition.recording.torch_functions import (
    RANDOM_FUNCTIONS,
    function_name,
    mutated_tensors,
    tensor_leaves,
)
from hocket.partition.shared_weights import replace_weights

_APPLY = torch.autograd.Function.apply.__code__


class StopForward(BaseException):
    """Signal that the forward reached the next stage; not an error, so not an Exception."""


class PartialForward:
    """Interceptor that executes the steps of one stage in a forward of the network.

    Args:
        values: Tensors of this forward, with the part of it that is to be executed.
        repeated: Modules in which each stage repeats what depends on discrete inputs only.
        meta_modules: Cached outputs of skipped modules.
        on_begin: Function to call when the stage begins, if any.

    Attributes:
        cleanup: To be closed after the forward.
    """

    def __init__(
        self,
        values: ForwardValues,
        repeated: frozenset[str],
        meta_modules: MetaModules,
        on_begin: Callable[[], None] | None,
    ) -> None:
        self.cleanup = ExitStack()
        self._values = values
        self._repeated = repeated
        self._stepwise_modules = values.span.split_modules | repeated
        self._meta_modules = meta_modules
        self._on_begin = on_begin
        self._frames: list[Frame] = []
        self._is_inside = False  # a whole module

    def call(
        self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return a module's output, or meta tensors before the stage; see the protocol.

        Raises:
            StopForward: The next stage begins with this call.
        """
        if self._is_inside:
            return call_intercepted(module, args, kwargs)
        if not self._frames:
            return self._call_split(name, module, args, kwargs)

        # The stage begins and ends at calls of modules.
        frame, values, span = self._frames[-1], self._values, self._values.span
        if values.begun and span.end is not None and name == span.end.name:
            raise StopForward
        path = frame.step(name)
        if not values.begun and span.begin is not None and name == span.begin.name:
            values.begin()
            weights = replace_weights(values.network, values.received_weights)
            self.cleanup.enter_context(weights)
            if self._on_begin is not None:
                self._on_begin()

        # A module that a cut divides is executed step by step, any other one as a whole.
        call = self._call_split if name in self._stepwise_modules else self._call_whole
        output = call(name, module, args, kwargs)

        # Later steps and the next stage may ask for tensors of the output by their keys.
        if values.keeps_results:
            results = tensor_leaves(output)
            # A constant that the module returns as it is, or computes step by step, stays one.
            known = results if name in self._repeated else tensor_leaves(args, kwargs)
            constants = {id(t) for t in known if not values.varies(t)}
            values.register(frame.name, path, results, constants)
        return values.substitute(output)

    def function(
        self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return a function's result, meta tensors for such operands; see the protocol.

        Raises:
            CutError: The function has no result without numbers.
        """
        if self._is_inside or not self._frames:
            return function(*args, **kwargs)
        values = self._values
        args, kwargs = values.operands(args), values.operands(kwargs)
        name, operands = function_name(function), tensor_leaves(args, kwargs)

        # A query of the device. With an operand: `torch.device` itself has the same name, and
        # none.
        if operands and name in ("device", "is_cuda", "is_cpu", "is_meta"):
            asked = operands[0]
            # Weights of other stages may be on another device than this stage computes on.
            foreign = values.span.begin is not None and isinstance(asked, nn.Parameter)
            if asked.is_meta or foreign:
                asked = torch.empty(0, device=values.device)
            return function(asked)

        # The result, with numbers or without.
        any_meta = any([t.is_meta for t in operands])
        if not values.keeps_results and not any_meta:
            return function(*args, **kwargs)
        varies = name in RANDOM_FUNCTIONS or any(map(values.varies, operands))
        if any_meta or (varies and not values.begun):
            functions = self._meta_modules.functions
            try:
                output, mutated = functions.run(function, args, kwargs, operands, values.device)
            except Exception as error:
                reason = str(error).partition("\n")[0]
                raise CutError(
                    f"{values.span} cannot leave out what is before it: {name} ({user_line()}) "
                    f"needs numbers: {reason}; cut before it, or move it into a module"
                ) from error
        else:
            versions = [(t, t._version) for t in operands]
            output = function(*args, **kwargs)
            mutated = mutated_tensors(versions)

        # Only what may differ between stages is a step of the path.
        if varies and (results := tensor_leaves(output) or mutated):
            frame = self._frames[-1]
            constants = {id(t) for t in operands if not values.varies(t)}
            constants -= {id(t) for t in mutated}
            values.register(frame.name, frame.step(name), results, constants)
            # Not only where it is used: activation checkpointing keeps what it is given, and so
            # may objects. The forward of a custom autograd function must not return a received
            # value, which would become the output of that function.
            return output if _is_inside_autograd_function() else values.substitute(output)
        return output

    def _call_whole(
        self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a module that no cut divides; before the stage it does not run.

        Functions inside it, and queries of shapes there, are not steps of the path.

        Raises:
            CutError: It fails, and an argument is neither received nor computed here.
            RuntimeError: It fails for another reason.
        """
        values = self._values
        args, kwargs = values.operands(args), values.operands(kwargs)
        self._is_inside = True
        try:
            if not values.begun:
                return self._meta_modules.output(
                    module, args, kwargs, values.device, name, values.mode
                )
            return call_whole(module, args, kwargs)
        except RuntimeError as error:
            if values.begun and any(tensor.is_meta for tensor in tensor_leaves(args, kwargs)):
                raise CutError(
                    f"{values.span} is given a tensor without numbers: the forward took "
                    "another path than on the sample, or keeps a tensor in an attribute from "
                    "batch to batch; cut with a sample like the batches, let a module of its "
                    "own keep what is kept, or cut elsewhere"
                ) from error
            raise
        finally:
            self._is_inside = False

    def _call_split(
        self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a module that several stages share, and intercept each step of its forward."""
        self._frames.append(Frame(name))
        try:
            return call_intercepted(module, args, kwargs)
        finally:
            self._frames.pop()


def _is_inside_autograd_function() -> bool:
    """Return True inside the forward of a custom autograd function, where gradients are off."""
    if torch.is_grad_enabled():
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _APPLY:  # walk_stack takes twice as long
        frame = frame.f_back
    return frame is not None

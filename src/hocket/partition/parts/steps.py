"""Steps of a forward of a stage: calls of modules and functions, before the stage and in it."""

import sys
from abc import ABC, abstractmethod
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from hocket.errors import CutError
from hocket.partition.parts.forward_values import ForwardValues
from hocket.partition.parts.meta_functions import MetaFunctions
from hocket.partition.parts.meta_tensors import MetaModules
from hocket.partition.parts.stage_span import StageSpan
from hocket.partition.recording.intercept import Function, call_intercepted, call_whole
from hocket.partition.recording.recorder import user_line
from hocket.partition.recording.recording import ForwardMode, Frame
from hocket.partition.recording.torch_functions import (
    RANDOM_FUNCTIONS,
    function_name,
    mutated_tensors,
    tensor_leaves,
)

_APPLY = torch.autograd.Function.apply.__code__


def _is_inside_autograd_function() -> bool:
    """Return True inside the forward of a custom autograd function, where gradients are off."""
    if torch.is_grad_enabled():
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _APPLY:
        frame = frame.f_back
    return frame is not None


class Steps(ABC):
    """Base of the steps before a stage and in it.

    Args:
        span: The part of the forward that is the stage.
        values: Tensors of the forward.
        functions: Results of functions without numbers.
    """

    begun: bool
    """Whether the stage has begun."""

    def __init__(
        self, span: StageSpan, values: ForwardValues, functions: MetaFunctions
    ) -> None:
        self._span = span
        self._values = values
        self._functions = functions

    @abstractmethod
    def call(
        self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return the output of a module that no cut divides.

        Args:
            name: Name of the module in the network.
            module: The module.
            args: Positional arguments of the call.
            kwargs: Keyword arguments of the call.
        """

    @abstractmethod
    def operands(self, tree: Any) -> Any:
        """Return the arguments of a step with the values that it computes with."""

    @abstractmethod
    def runs_unseen(self, *, any_meta: bool) -> bool:
        """Return True if no later step will ask for the results of a function.

        Args:
            any_meta: Whether an operand has no numbers.
        """

    def register(
        self, frame: str, path: int, results: list[Tensor], constants: set[int]
    ) -> None:
        """Register the tensors of a step under their keys; see `ForwardValues.register`.

        Args:
            frame: Module whose forward made the step.
            path: Its path, including the step.
            results: Tensors in the result of the step.
            constants: Ids of those that are the same in every stage.
        """
        self._values.register(frame, path, results, constants, begun=self.begun)

    def function(
        self, frame: Frame, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return the result of a function, or meta tensors if it has operands without numbers.

        Args:
            frame: Forward that calls the function.
            function: The function.
            args: Positional arguments of the call.
            kwargs: Keyword arguments of the call.

        Raises:
            CutError: The function has no result without numbers.
        """
        values = self._values
        args, kwargs = self.operands(args), self.operands(kwargs)
        name, operands = function_name(function), tensor_leaves(args, kwargs)

        # A query of the device. With an operand: `torch.device` itself has the same name, and
        # none.
        if operands and name in ("device", "is_cuda", "is_cpu", "is_meta"):
            return function(self._on_device(operands[0]))

        # The result, with numbers or without.
        any_meta = any([t.is_meta for t in operands])
        if self.runs_unseen(any_meta=any_meta):
            return function(*args, **kwargs)
        varies = name in RANDOM_FUNCTIONS or any(map(values.varies, operands))
        if any_meta or (varies and not self.begun):
            output, mutated = self._run_without_numbers(function, args, kwargs, operands)
        else:
            versions = [(t, t._version) for t in operands]
            output = function(*args, **kwargs)
            mutated = mutated_tensors(versions)

        # Only what may differ between stages is a step of the path.
        if varies and (results := tensor_leaves(output) or mutated):
            constants = {id(t) for t in operands if not values.varies(t)}
            constants -= {id(t) for t in mutated}
            self.register(frame.name, frame.step(name), results, constants)
            # Not only where it is used: activation checkpointing keeps what it is given, and so
            # may objects. The forward of a custom autograd function must not return a received
            # value, which would become the output of that function.
            return output if _is_inside_autograd_function() else values.substitute(output)
        return output

    def _on_device(self, tensor: Tensor) -> Tensor:
        """Return a tensor of the device that a tensor has for this stage."""
        # Weights of other stages may be on another device than this stage computes on.
        of_other_stage = self._span.begin is not None and isinstance(tensor, nn.Parameter)
        if tensor.is_meta or of_other_stage:
            return torch.empty(0, device=self._values.device)
        return tensor

    def _run_without_numbers(
        self,
        function: Function,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        operands: list[Tensor],
    ) -> tuple[Any, list[Tensor]]:
        """Return the result of a function as meta tensors, and the tensors that it changed.

        Args:
            function: The function.
            args: Positional arguments of the call.
            kwargs: Keyword arguments of the call.
            operands: Tensors among the arguments.

        Raises:
            CutError: It has no result without numbers.
        """
        try:
            return self._functions.run(function, args, kwargs, operands)
        except Exception as error:
            reason = str(error).partition("\n")[0]
            raise CutError(
                f"{self._span} cannot leave out what is before it: {function_name(function)} "
                f"({user_line()}) needs numbers: {reason}; cut before it, or move it into a "
                "module"
            ) from error


class BeforeStage(Steps):
    """Steps before the stage, which yield meta tensors.

    Args:
        span: The part of the forward that is the stage.
        values: Tensors of the forward.
        mode: Mode of the forward.
        meta_modules: Cached outputs of skipped modules.
    """

    begun = False

    def __init__(
        self,
        span: StageSpan,
        values: ForwardValues,
        mode: ForwardMode,
        meta_modules: MetaModules,
    ) -> None:
        super().__init__(span, values, meta_modules.functions)
        self._mode = mode
        self._meta_modules = meta_modules

    def call(
        self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return meta tensors like the output of a module, which does not run.

        See the protocol.
        """
        return self._meta_modules.output(
            module,
            self.operands(args),
            self.operands(kwargs),
            self._values.device,
            name,
            self._mode,
        )

    def operands(self, tree: Any) -> Any:
        """Return the arguments with the placeholders of received values."""
        return self._values.without_received(tree)

    def runs_unseen(self, *, any_meta: bool) -> bool:
        """Return False: a received value may be the result of any step."""
        return False


class InStage(Steps):
    """Steps in the stage, which are executed with the received values."""

    begun = True

    def call(
        self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return the output of a module of this stage.

        See the protocol.

        Raises:
            CutError: It fails, and an argument is neither received nor computed here.
            RuntimeError: It fails for another reason.
        """
        args, kwargs = self.operands(args), self.operands(kwargs)
        try:
            return call_whole(module, args, kwargs)
        except RuntimeError as error:
            if any(tensor.is_meta for tensor in tensor_leaves(args, kwargs)):
                raise CutError(
                    f"{self._span} is given a tensor without numbers: the forward took another "
                    "path than on the sample, or keeps a tensor in an attribute from batch to "
                    "batch; cut with a sample like the batches, let a module of its own keep "
                    "what is kept, or cut elsewhere"
                ) from error
            raise

    def operands(self, tree: Any) -> Any:
        """Return the arguments with received values."""
        return self._values.substitute(tree)

    def runs_unseen(self, *, any_meta: bool) -> bool:
        """Return True in the last stage, which sends no values, if there are numbers."""
        return not self._values.sent_keys and not any_meta


class InWholeModule:
    """Steps inside a module that no cut divides: they run as they are, and are no steps."""

    def call(
        self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return the output of a module.

        See the protocol.
        """
        return call_intercepted(module, args, kwargs)

    def function(
        self, frame: Frame, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return the result of a function.

        See the protocol.
        """
        return function(*args, **kwargs)

"""One forward of a stage that is a part of a network's own forward.

The stage sees each step of the forward: the calls of modules and of functions. What it does
with a step depends on where the forward is: before the stage, in it, or inside a whole module.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch import nn

from hocket.partition.parts.forward_values import ForwardValues
from hocket.partition.parts.meta_tensors import MetaModules
from hocket.partition.parts.stage_span import StageSpan
from hocket.partition.parts.steps import BeforeStage, InStage, InWholeModule, Steps
from hocket.partition.recording.intercept import Function, call_intercepted
from hocket.partition.recording.recording import ForwardMode, Frame
from hocket.partition.recording.torch_functions import tensor_leaves
from hocket.partition.shared_weights import replace_weights


class StopForward(BaseException):
    """Signal that the forward reached the next stage; not an error, so not an Exception."""


class PartialForward:
    """Interceptor that executes the steps of one stage in a forward of the network.

    Steps before the stage yield meta tensors. Where the stage uses the placeholder of a
    received value, it uses that value.

    Args:
        network: The network.
        span: The part to execute.
        mode: Mode of this forward.
        values: Tensors of this forward.
        repeated: Modules in which each stage repeats what depends on discrete inputs only.
        meta_modules: Cached outputs of skipped modules.
        on_begin: Function to call when the stage begins, if any.

    Attributes:
        cleanup: To be closed after the forward.
    """

    def __init__(
        self,
        network: nn.Module,
        span: StageSpan,
        mode: ForwardMode,
        values: ForwardValues,
        repeated: frozenset[str],
        meta_modules: MetaModules,
        on_begin: Callable[[], None] | None,
    ) -> None:
        self.cleanup = ExitStack()
        self._network = network
        self._values = values
        self._begin = span.begin.name if span.begin is not None else None
        self._end = span.end.name if span.end is not None else None
        self._repeated = repeated
        self._stepwise_modules = span.split_modules | repeated
        self._on_begin = on_begin
        self._frames: list[Frame] = []
        self._in_stage = InStage(span, values, meta_modules.functions)
        before = BeforeStage(span, values, mode, meta_modules)
        self._steps: Steps = self._in_stage if span.begin is None else before
        self._inside = InWholeModule()
        self._is_inside = False  # a whole module

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
        if self._is_inside:
            return self._inside.call(name, module, args, kwargs)
        if not self._frames:
            return self._call_split(name, module, args, kwargs)

        # The stage begins and ends at calls of modules.
        frame = self._frames[-1]
        if self._steps.begun and name == self._end:
            raise StopForward
        path = frame.step(name)
        if not self._steps.begun and name == self._begin:
            self._begin_stage()

        # A module that a cut divides is executed step by step, any other one as a whole.
        call = self._call_split if name in self._stepwise_modules else self._call_whole
        output = call(name, module, args, kwargs)

        # The next stage may ask for tensors of the output by their keys.
        if not self._steps.runs_unseen(any_meta=False):
            results = tensor_leaves(output)
            # A constant that the module returns as it is, or computes step by step, stays one.
            known = results if name in self._repeated else tensor_leaves(args, kwargs)
            constants = {id(t) for t in known if not self._values.varies(t)}
            self._steps.register(frame.name, path, results, constants)
        return self._values.substitute(output)

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
        if not self._frames:
            return function(*args, **kwargs)
        steps = self._inside if self._is_inside else self._steps
        return steps.function(self._frames[-1], function, args, kwargs)

    def _begin_stage(self) -> None:
        """Go over from the steps before the stage to those in it.

        Raises:
            CutError: The forward took another path than on the sample.
        """
        self._values.require_all_received()
        self._steps = self._in_stage
        self.cleanup.enter_context(
            replace_weights(self._network, self._values.received_weights)
        )
        if self._on_begin is not None:
            self._on_begin()

    def _call_whole(
        self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a module that no cut divides.

        Functions inside it, and queries of shapes there, are not steps of the path.
        """
        self._is_inside = True
        try:
            return self._steps.call(name, module, args, kwargs)
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

"""One forward of a stage that is a part of a network's own forward."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from hocket.errors import CutError
from hocket.partition.cut_graph import CutPoint
from hocket.partition.intercept import Function, call_intercepted
from hocket.partition.meta_tensors import MetaModules, run_on_meta
from hocket.partition.recording import ForwardMode, Frame, ValueKey
from hocket.partition.torch_functions import (
    RANDOM_FUNCTIONS,
    function_name,
    mutated_tensors,
    tensor_leaves,
)
from hocket.tree import Tree, map_tensors


@dataclass(frozen=True)
class StageSpan:
    """The part of a network's forward between two cut points.

    Attributes:
        begin: Cut point at which the stage begins; None for the start of the network.
        end: Cut point at which the stage ends; None for the end of the network.
    """

    begin: CutPoint | None
    end: CutPoint | None

    @property
    def split_modules(self) -> frozenset[str]:
        """Modules that this stage shares with others, because a cut is inside their forward."""
        return frozenset(
            name
            for point in (self.begin, self.end)
            if point is not None
            for name in point.callers
        )

    def __str__(self) -> str:
        begin = self.begin.name if self.begin else "the start"
        return f"the stage from {begin!r} to {self.end.name if self.end else 'the end'!r}"


class StopForward(BaseException):
    """Signal that the forward reached the next stage; not an error, so not an Exception."""


@dataclass
class PartialForward:
    """Interceptor that executes the steps of one stage in a forward of the network.

    Steps before the stage yield meta tensors. Where the stage uses one that stands for a
    received value, it uses that value.

    Args:
        network: The network.
        span: The part to execute.
        mode: Mode of this forward.
        meta_modules: Cached outputs of skipped modules.
        on_begin: Function to call when the stage begins, if any.
    """

    network: nn.Module
    span: StageSpan
    mode: ForwardMode
    meta_modules: MetaModules
    on_begin: Callable[[], None] | None
    frames: list[Frame] = field(default_factory=list)
    inside_whole_module: bool = False  # no cut point is inside the module that is running
    received: dict[ValueKey, Tensor] = field(default_factory=dict)
    substitutes: dict[int, Tensor] = field(default_factory=dict)  # by the id of a placeholder
    placeholders: list[Tensor] = field(default_factory=list)  # kept, so that ids are not reused
    computed: dict[ValueKey, Tensor] = field(default_factory=dict)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        begin, end = self.span.begin, self.span.end
        self.begun = begin is None
        self.begin = begin.name if begin is not None else None
        self.end = end.name if end is not None else None
        self.split_modules = self.span.split_modules
        self.sent_keys = end.sent_keys(self.mode) if end is not None else ()

    def receive(self, values: list[Tensor]) -> None:
        """Set the values that the previous stage sent."""
        assert self.span.begin is not None
        self.received = dict(zip(self.span.begin.sent_keys(self.mode), values, strict=True))
        self.device = values[0].device if values else self.device

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
            self.begun = True
            if self.on_begin is not None:
                self.on_begin()
        if name in self.split_modules:
            output = self._call_split(name, module, args, kwargs)
        else:
            # Functions inside it, and queries of shapes here, are not steps of the path.
            self.inside_whole_module = True
            try:
                if self.begun:
                    output = call_intercepted(
                        module, self.substitute(args), self.substitute(kwargs)
                    )
                else:
                    output = self.meta_modules.output(
                        module, args, kwargs, self.device, name, self.mode
                    )
            finally:
                self.inside_whole_module = False
        self.register(frame.name, path, tensor_leaves(output))
        return output

    def function(
        self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return the result of a function, or meta tensors if it is before the stage.

        Args:
            function: The function.
            args: Positional arguments of the call.
            kwargs: Keyword arguments of the call.
        """
        if self.inside_whole_module or not self.frames:
            return function(*args, **kwargs)
        if self.begun:
            args, kwargs = self.substitute(args), self.substitute(kwargs)
        name, operands = function_name(function), tensor_leaves(args, kwargs)
        if name in ("device", "is_cuda", "is_cpu", "is_meta"):
            # Weights of other stages may be on another device than this stage computes on.
            of_other_stage = self.begin is not None and isinstance(operands[0], nn.Parameter)
            here = torch.empty(0, device=self.device)
            return function(here if operands[0].is_meta or of_other_stage else operands[0])
        on_meta = any(t.is_meta for t in operands)
        if on_meta or not (self.begun or self._same_in_all_stages(name, operands)):
            output, mutated = run_on_meta(function, args, kwargs, operands)
        else:
            versions = [(t, t._version) for t in operands]
            output = function(*args, **kwargs)
            mutated = mutated_tensors(versions)
        if results := tensor_leaves(output) or mutated:
            frame = self.frames[-1]
            self.register(frame.name, frame.step(name), results)
        return output

    def _same_in_all_stages(self, name: str, operands: list[Tensor]) -> bool:
        """Return whether a function depends neither on weights nor on random numbers."""
        return name not in RANDOM_FUNCTIONS and not any(id(t) in self.weights for t in operands)

    @cached_property
    def weights(self) -> set[int]:
        """Ids of the network's parameters and buffers."""
        return {id(t) for t in (*self.network.parameters(), *self.network.buffers())}

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

    def collect_sent(self) -> Tree:
        """Return the values to send to the next stage: a tensor, or a tuple of tensors.

        Raises:
            CutError: The forward took another path than on the sample.
        """
        missing = [key for key in self.sent_keys if key not in self.computed]
        if missing:
            raise CutError(
                f"{self.span} did not compute what the next one needs: the forward of "
                f"{missing[0].frame!r} took another path than on the sample; cut with a sample "
                "like the batches, or cut elsewhere"
            )
        values = tuple(self.substitute(self.computed[key]) for key in self.sent_keys)
        return values[0] if len(values) == 1 else values

    def register(self, frame: str, path: int, results: list[Tensor]) -> None:
        """Register the tensors of a step under their keys.

        Args:
            frame: Module whose forward made the step.
            path: Its path, including the step.
            results: Tensors in the result of the step.
        """
        for position, tensor in enumerate(results):
            key = ValueKey(frame, path, position)
            if key in self.received and not self.begun:
                self.placeholders.append(tensor)
                self.substitutes[id(tensor)] = self.received[key]
            if key in self.sent_keys:
                self.computed[key] = tensor

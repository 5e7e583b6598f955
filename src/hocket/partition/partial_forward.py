"""One way through a part of a network's forward, past what lies before it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from hocket.errors import CutError
from hocket.partition.cut_points import CutPoint
from hocket.partition.intercept import Go, call_intercepted
from hocket.partition.meta_tensors import MetaModules, meta_result
from hocket.partition.recording import ForwardMode, Frame, ValueKey
from hocket.partition.torch_functions import (
    RANDOM,
    changed_tensors,
    function_name,
    tensor_leaves,
)
from hocket.tree import Tree


@dataclass(frozen=True)
class StageSpan:
    """Which part of a forward a stage is.

    Attributes:
        begin: The border at which it begins; None for the start of the network.
        end: The border at which it ends; None for the end.
    """

    begin: CutPoint | None
    end: CutPoint | None

    @property
    def opened(self) -> frozenset[str]:
        """The modules whose forward the stage goes through."""
        return frozenset(
            name for b in (self.begin, self.end) if b is not None for name in b.inside
        )

    def __str__(self) -> str:
        begin = self.begin.name if self.begin else "the start"
        return f"the stage from {begin!r} to {self.end.name if self.end else 'the end'!r}"


class StopForward(BaseException):
    """The call at which the next stage begins was reached; no error, so no Exception."""


@dataclass
class PartialForward:
    """One forward of a piece."""

    network: nn.Module
    part: StageSpan
    way: ForwardMode
    shapes: MetaModules
    on_begin: Callable[[], None] | None
    frames: list[Frame] = field(default_factory=list)
    inside: bool = False  # a module that lies on one side of the borders as a whole
    received: dict[ValueKey, Tensor] = field(default_factory=dict)
    known: dict[int, Tensor] = field(default_factory=dict)  # by the id of what stands for it
    kept: list[Tensor] = field(default_factory=list)  # so that no other gets their ids
    found: dict[ValueKey, Tensor] = field(default_factory=dict)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        begin, end = self.part.begin, self.part.end
        self.begun = begin is None
        self.begin = begin.name if begin is not None else None
        self.end = end.name if end is not None else None
        self.opened = self.part.opened
        self.wanted = end.sent(self.way) if end is not None else ()

    def receive(self, values: list[Tensor]) -> None:
        """Note what the stage before gave."""
        assert self.part.begin is not None
        self.received = dict(zip(self.part.begin.sent(self.way), values, strict=True))
        self.device = values[0].device if values else self.device

    def call(
        self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The module's output, or what stands for it."""
        if self.inside:
            return call_intercepted(module, args, kwargs)
        if not self.frames:
            return self._opened(name, module, args, kwargs)
        frame = self.frames[-1]
        if self.begun and name == self.end:
            raise StopForward
        path = frame.step(name)
        if not self.begun and name == self.begin:
            self.begun = True
            if self.on_begin is not None:
                self.on_begin()
        if name in self.opened:
            output = self._opened(name, module, args, kwargs)
        else:
            # As a whole: what happens in it, and a look at a shape here, is no step.
            self.inside = True
            try:
                if self.begun:
                    output = call_intercepted(module, self.given(args), self.given(kwargs))
                else:
                    output = self.shapes.output(
                        module, args, kwargs, self.device, name, self.way
                    )
            finally:
                self.inside = False
        self.register(frame.name, path, tensor_leaves(output))
        return output

    def function(self, go: Go, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The function's result, or what stands for it."""
        if self.inside or not self.frames:
            return go(*args, **kwargs)
        if self.begun:
            args, kwargs = self.given(args), self.given(kwargs)
        name, taken = function_name(go), tensor_leaves(args, kwargs)
        if name in ("device", "is_cuda", "is_cpu", "is_meta"):
            # Of the weights of other stages, too, which may be where they do not compute.
            elsewhere = self.begin is not None and isinstance(taken[0], nn.Parameter)
            here = torch.empty(0, device=self.device)
            return go(here if taken[0].is_meta or elsewhere else taken[0])
        if any(t.is_meta for t in taken) or not (self.begun or self._fixed(name, taken)):
            output, edited = meta_result(go, args, kwargs, taken)
        else:
            versions = [(t, t._version) for t in taken]
            output = go(*args, **kwargs)
            edited = changed_tensors(versions)
        if found := tensor_leaves(output) or edited:
            frame = self.frames[-1]
            self.register(frame.name, frame.step(name), found)
        return output

    def _fixed(self, name: str, taken: list[Tensor]) -> bool:
        """Whether every stage computes the same: neither weights nor chance matter."""
        return name not in RANDOM and not any(id(t) in self.weights for t in taken)

    @cached_property
    def weights(self) -> set[int]:
        """The ids of the network's parameters and buffers."""
        return {id(t) for t in (*self.network.parameters(), *self.network.buffers())}

    def _opened(
        self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self.frames.append(Frame(name))
        try:
            return call_intercepted(module, args, kwargs)
        finally:
            self.frames.pop()

    def given(self, tree: Any) -> Any:
        """The same with what was received in the place of what stands for it."""
        if not self.known:
            return tree
        return pytree.tree_map_only(Tensor, lambda t: self.known.get(id(t), t), tree)

    def leaving(self) -> Tree:
        """What the next stage is to receive."""
        missing = [key for key in self.wanted if key not in self.found]
        if missing:
            raise CutError(
                f"{self.part} did not compute what the next one needs: the forward of "
                f"{missing[0].frame!r} took another path than on the sample; cut with a sample "
                "like the batches, or cut elsewhere"
            )
        values = tuple(self.given(self.found[key]) for key in self.wanted)
        return values[0] if len(values) == 1 else values

    def register(self, frame: str, path: int, found: list[Tensor]) -> None:
        """Note tensors that came up, under the name of the step that made them."""
        for place, tensor in enumerate(found):
            key = ValueKey(frame, path, place)
            if key in self.received and not self.begun:
                self.kept.append(tensor)
                self.known[id(tensor)] = self.received[key]
            if key in self.wanted:
                self.found[key] = tensor

"""Steps of an optimizer, recorded for as long as its numbers stay the same."""

from collections.abc import Callable, Hashable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from hocket.stage.graphs.recorder import GraphRecorder, fill
from hocket.stage.update.bare_step import bare_step
from hocket.tree import leaves


class ReplayedStep:
    """Does a step; from the third one with equal numbers on it replays one that was recorded.

    A recording has the learning rate of its step in it, and the places of all tensors. Steps
    of other optimizers than those that PyTorch calls capturable, and `SGD`, are done each time.
    """

    def __init__(self, recorder: GraphRecorder) -> None:
        self._recorder = recorder
        self._state: Hashable = None  # of the last step
        self._gradients: Sequence[Tensor] = ()
        self._replay: Callable[[], None] | None = None

    def __call__(self, optimizer: Optimizer) -> None:
        """Do a step with the gradients of the weights."""
        step = bare_step(optimizer)
        weights = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in weights if p.grad is not None]

        # Other numbers or tensors than in the last step, or too little is known.
        state = _state(optimizer, weights) if _is_capturable(optimizer, step) else None
        if state is None or state != self._state:
            step()
            self._replay = None
            self._state = None if state is None else _state(optimizer, weights)
            return

        # The same step once more.
        if self._replay is None:
            self._gradients = gradients
            self._replay = self._recorder.record(step, None)
            return
        with torch.no_grad():
            fill(self._gradients, gradients)
            self._replay()


def _is_capturable(optimizer: Optimizer, step: Callable[[], object]) -> bool:
    """Return True if a step is nothing but kernels, which use the same numbers each time."""
    if not isinstance(step, partial):  # hooks or a profiler see it
        return False
    of_torch = step.func.__globals__["__name__"].startswith("torch.optim.")
    flags = [group.get("capturable", False) for group in optimizer.param_groups]
    return of_torch and (type(optimizer) is SGD or all(flags))


def _state(optimizer: Optimizer, weights: Sequence[Tensor]) -> Hashable:
    """Return everything that a recorded step depends on, besides the numbers on its device."""
    numbers = [
        (name, *map(_recorded, leaves(value)))
        for group in optimizer.param_groups
        for name, value in group.items()
        if name != "params"
    ]
    states = [optimizer.state.get(p, {}).values() for p in weights]
    places = [
        (p.data_ptr(), p.grad is None, *[v.data_ptr() for v in state if isinstance(v, Tensor)])
        for p, state in zip(weights, states, strict=True)
    ]
    return repr(numbers), tuple(places)


def _recorded(number: object) -> object:
    # Kernels read a tensor of the device at its place; what the host reads is in the recording.
    if isinstance(number, Tensor):
        return number.data_ptr(), number.is_cpu and number.tolist()
    return number

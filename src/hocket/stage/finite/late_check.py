"""Search for NaN and infinity once in several ticks, so that others do not wait for the device.

A stage keeps norms of everything that it computes. When they are read, a fault is known some
ticks late: then all stages of the process go back to the state that they had when norms were
last read and all were finite.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

import torch
from torch import Tensor, nn

from hocket.errors import NonFiniteError
from hocket.program.action import Action
from hocket.stage.layers.module_tensors import BufferCopies, ModuleTensors, restore_buffers
from hocket.stage.update.norms import largest_values
from hocket.stage.update.updater import Updater
from hocket.stage.weight_copies.forward_state import set_tensors
from hocket.tree import Tree, copy_tensors

Names = Callable[[], Sequence[str]]
"""Returns the names of some tensors, which only a message needs."""
Unnamed: TypeAlias = tuple[Names, Sequence[Tensor]]
"""Norms of some tensors, and what returns the names of these."""

_ORDER = count()


@dataclass(frozen=True)
class _Unread:
    """Norms of tensors of one action, still on their device.

    Attributes:
        order: Their place among all norms of the process.
        action: The action; None if the stage has done none.
        tick: Number of the tick of that action.
        names: Returns the names of the tensors.
        norms: Norm of each.
    """

    order: int
    action: Action | None
    tick: int
    names: Names
    norms: Sequence[Tensor]


class LateCheck:
    """Norms of a stage that were not read yet, and its state when norms were last read.

    Args:
        every: Ticks between two readings; with 1 every fault is found at once, and there is
            nothing to do here.
        modules: Layers of the stage and the network of its signal.
        updaters: Their updaters.

    Attributes:
        postpones: True if norms are to be added here, and read later.
        kept_when: Description of the time of the state that is kept.
        tick: Number of the present tick.
        unread: Norms that were not read yet.
    """

    def __init__(
        self, every: int, modules: Sequence[nn.Module], updaters: Sequence[Updater]
    ) -> None:
        self.every = every
        self.postpones = every > 1
        self._modules = modules
        self._tensors = [ModuleTensors(module) for module in modules]
        self._updaters = updaters
        self.unread: list[_Unread] = []
        self._kept: tuple[Tree, Tree, list[BufferCopies]] | None = None
        self.kept_when = ""
        self._action: Action | None = None
        self.tick = 0

    def before(self, action: Action, tick: int) -> None:
        """Record the next action, and keep the state before the first one.

        It is called only if norms are read later.
        """
        self._action, self.tick = action, tick
        if self._kept is None:
            self.keep(f"before tick {tick}")

    def add(self, names: Names, norms: Sequence[Tensor]) -> None:
        """Add norms of tensors of the present action, each a scalar."""
        self.unread.append(_Unread(next(_ORDER), self._action, self.tick, names, norms))

    @contextmanager
    def collecting(self) -> Iterator[list[Unnamed]]:
        """Context manager in which norms are collected in a list, and not added."""
        collected: list[Unnamed] = []
        outside, self.unread = self.unread, []
        try:
            yield collected
        finally:
            collected += [(each.names, each.norms) for each in self.unread]
            self.unread = outside

    def add_copies(self, collected: Sequence[Unnamed]) -> None:
        """Add copies of norms whose tensors are written again later."""
        if not collected:
            return
        copies = iter(_stack([norm for _, norms in collected for norm in norms]))
        for names, norms in collected:
            self.add(names, [next(copies) for _ in norms])

    def find(self) -> tuple[_Unread, str] | None:
        """Read all norms, also of the weights.

        Returns:
            The first action with a norm that is not finite, and a description of the fault,
            such as ``loss became nan``; None if there is no fault.
        """
        if weights := [p for updater in self._updaters for p in updater.parameters]:
            self.add(self._weight_names, largest_values([p.detach() for p in weights]))
        unread, self.unread = self.unread, []
        norms = [norm for each in unread for norm in each.norms]
        if not norms or (stacked := _stack(norms)).isfinite().all():
            return None

        # Find the first that is not finite.
        values = iter(stacked.tolist())
        for each in unread:
            for number, value in enumerate([next(values) for _ in each.norms]):
                if not math.isfinite(value):
                    return each, f"{each.names()[number]} became {value}"
        return None

    def go_back(self) -> None:
        """Return to the state that is kept, if the stage has done anything since its start."""
        if self._kept is None:
            return
        weights, states, buffers = self._kept
        for module, values in zip(self._modules, weights, strict=True):
            set_tensors(module, values)
        for copies in buffers:
            restore_buffers(copies)
        for updater, state in zip(self._updaters, states, strict=True):
            updater.load_state_dict(copy_tensors(state))  # which optimizers keep and change
            updater.zero_grad()

    def forget(self) -> None:
        """Forget all norms and the kept state, as another state has been loaded."""
        self.unread, self._kept = [], None

    def _weight_names(self) -> list[str]:
        return [f"weight {name!r}" for updater in self._updaters for name in updater.names]

    @torch.no_grad()
    def keep(self, when: str) -> None:
        """Keep the present state, between two ticks."""
        self._kept = None  # to be freed before there is another one
        weights = [dict(module.named_parameters()) for module in self._modules]
        states = [updater.state_dict() for updater in self._updaters]
        buffers = [each.copy_buffers() for each in self._tensors]
        self._kept = *copy_tensors((weights, states)), buffers
        self.kept_when = when


def _stack(norms: Sequence[Tensor]) -> Tensor:
    """Return all norms as one tensor, on the GPU if one of them is there."""
    devices = {norm.device for norm in norms}
    if len(devices) > 1:  # a stage may send tensors that stay on the host, such as lengths
        place = next(device for device in devices if device.type != "cpu")
        norms = [norm.to(place) for norm in norms]
    return torch.stack(list(norms))


def check_pending(checks: Sequence[LateCheck]) -> None:
    """Read all pending norms of the stages of this process; keep their states, or go back.

    Raises:
        NonFiniteError: A norm is not finite. It is the first one of this process, in the order
            of the actions.
    """
    if not any(check.unread for check in checks):
        return

    # Without a fault the present states are the ones to go back to.
    faults = [fault for check in checks if (fault := check.find()) is not None]
    if not faults:
        for check in checks:
            check.keep(f"after tick {check.tick}")
        return

    # Let all stages go back, also those whose numbers are finite.
    first, words = min(faults, key=lambda fault: fault[0].order)
    for check in checks:
        check.go_back()

    # Name the action of the first fault.
    error = NonFiniteError(
        f"the {words}, as was found later (check_every={checks[0].every}); the weights "
        f"of all stages of this process are those {checks[0].kept_when}; lower the learning "
        "rate, warm up, or look at the batch"
    )
    if (action := first.action) is not None:
        error.batch = action.batch
        place = f"stage {action.stage}, batch {action.batch}, tick {first.tick}: {action}"
        error.add_note(f"({place})")
    raise error

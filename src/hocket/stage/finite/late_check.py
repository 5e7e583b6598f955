"""Search for NaN and infinity once in several ticks, so that others do not wait for the device.

The device computes a norm of everything that a stage computes, and keeps it. When the norms are
read, a fault is known some ticks late: then all stages of the process go back to the state that
they had when the norms were last read and all were finite.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor, nn

from hocket.errors import NonFiniteError
from hocket.program.action import Action
from hocket.stage.layers.network_names import NetworkNames
from hocket.stage.update.accumulate import largest_values
from hocket.stage.update.updater import Updater
from hocket.stage.weight_copies.forward_state import named_tensors, set_tensors
from hocket.tree import Tree, copy_tensors

Names = Callable[[], Sequence[str]]
"""Returns the names of some tensors, which only a message needs."""

_ORDER = count()


@dataclass(frozen=True)
class _Unread:
    """Norms of tensors of one action, still on their device."""

    order: int  # among the norms of all stages of the process
    action: Action | None
    tick: int
    names: Names
    norms: Sequence[Tensor]


@dataclass(frozen=True)
class LateFault:
    """A norm that is not finite.

    Attributes:
        order: Its place among all norms of the process.
        action: Action that it was computed in; None if the stage has done none.
        tick: Number of the tick of that action.
        words: Description of the fault, such as ``loss became nan``.
    """

    order: int
    action: Action | None
    tick: int
    words: str


class LateCheck:
    """Norms of a stage that were not read yet, and its state when norms were last read.

    Args:
        every: Ticks between two readings; with 1 every fault is found at once, and there is
            nothing to do here.
        modules: Layers of the stage and the network of its signal.
        updaters: Their updaters.
        names: Names of weights in the network.

    Attributes:
        postpones: True if norms are to be added here, and read later.
        kept_when: Description of the time of the state that is kept.
    """

    def __init__(
        self,
        every: int,
        modules: Sequence[nn.Module],
        updaters: Sequence[Updater],
        names: NetworkNames,
    ) -> None:
        self.every = every
        self.postpones = every > 1
        self._modules = modules
        self._updaters = updaters
        self._names = names
        self._unread: list[_Unread] = []
        self._kept: Tree = None
        self.kept_when = ""
        self._action: Action | None = None
        self._tick = 0

    @property
    def pending(self) -> bool:
        """True if there are norms that were not read yet."""
        return bool(self._unread)

    def before(self, action: Action, tick: int) -> None:
        """Record the next action, and keep the state before the first one.

        It is called only if norms are read later.

        Args:
            action: The action.
            tick: Number of its tick.
        """
        self._action, self._tick = action, tick
        if self._kept is None:
            self._copy(f"before tick {tick}")

    def add(self, names: Names, norms: Sequence[Tensor]) -> None:
        """Add norms of tensors of the present action.

        Args:
            names: Returns the names of the tensors.
            norms: Norm of each, a scalar.
        """
        self._unread.append(_Unread(next(_ORDER), self._action, self._tick, names, norms))

    def find(self) -> LateFault | None:
        """Read all norms, also of the weights; return the first that is not finite."""
        if weights := [p for updater in self._updaters for p in updater.parameters]:
            self.add(self._weight_names, largest_values([p.detach() for p in weights]))
        unread, self._unread = self._unread, []
        norms = [norm for each in unread for norm in each.norms]
        if not norms or (stacked := _stack(norms)).isfinite().all():
            return None
        values = iter(stacked.tolist())
        for each in unread:
            for number, value in enumerate([next(values) for _ in each.norms]):
                if not math.isfinite(value):
                    words = f"{each.names()[number]} became {value}"
                    return LateFault(each.order, each.action, each.tick, words)
        return None

    def keep(self) -> None:
        """Keep the present state, between two ticks."""
        self._copy(f"after tick {self._tick}")

    def go_back(self) -> None:
        """Return to the state that is kept, if the stage has done anything since its start."""
        if self._kept is None:
            return
        tensors, states = self._kept
        for module, values in zip(self._modules, tensors, strict=True):
            set_tensors(module, values)
        for updater, state in zip(self._updaters, states, strict=True):
            updater.load_state_dict(copy_tensors(state))  # which optimizers keep and change
            updater.zero_grad()

    def forget(self) -> None:
        """Forget all norms and the kept state, as another state has been loaded."""
        self._unread, self._kept = [], None

    def _weight_names(self) -> list[str]:
        named = {id(p): name for m in self._modules for name, p in self._names.of_parameters(m)}
        return [
            f"weight {named[id(p)]!r}" for updater in self._updaters for p in updater.parameters
        ]

    @torch.no_grad()
    def _copy(self, when: str) -> None:
        self._kept = None  # to be freed before there is another one
        states = [updater.state_dict() for updater in self._updaters]
        self._kept = copy_tensors((list(map(named_tensors, self._modules)), states))
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

    Args:
        checks: Check of each stage.

    Raises:
        NonFiniteError: A norm is not finite. It is the first one of this process, in the order
            of the actions.
    """
    if not any(check.pending for check in checks):
        return

    # Without a fault the present states are the ones to go back to.
    faults = [fault for check in checks if (fault := check.find()) is not None]
    if not faults:
        for check in checks:
            check.keep()
        return

    # Let all stages go back, also those whose numbers are finite.
    first = min(faults, key=lambda fault: fault.order)
    for check in checks:
        check.go_back()

    # Name the action of the first fault.
    error = NonFiniteError(
        f"the {first.words}, as was found later (check_every={checks[0].every}); the weights "
        f"of all stages of this process are those {checks[0].kept_when}; lower the learning "
        "rate, warm up, or look at the batch"
    )
    if (action := first.action) is not None:
        error.batch = action.batch
        place = f"stage {action.stage}, batch {action.batch}, tick {first.tick}: {action}"
        error.add_note(f"({place})")
    raise error

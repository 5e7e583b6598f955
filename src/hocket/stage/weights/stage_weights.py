"""The weights that an action of a stage meets: its newest, older ones, or moved ones.

Old or moved weights are copied into the memory of the parameters for the time of an action, so
that parameters keep their identity for the optimizer, for hooks and for graphs.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import Tensor

from hocket.methods.method import Method
from hocket.program.action import Action
from hocket.stage.in_flight import InFlight
from hocket.stage.late_gradients.linearizer import Linearizer
from hocket.stage.parts import StageParts
from hocket.stage.update.updater import Updater

_NEWEST = nullcontext()


class StageWeights:
    """Forwards with the weights as they are.

    Args:
        updater: Updater of the weights, with the remedies.
        linearizer: Linearizer of the stage, whose graphs may share copies of the weights.
        in_flight: Batches in flight at the stage.

    Attributes:
        stand_in: What forwards see instead of the newest weights, for messages; empty if they
            see these.
    """

    stand_in = ""

    def __init__(self, updater: Updater, linearizer: Linearizer, in_flight: InFlight) -> None:
        self._updater = updater
        self._remedies = updater.remedies
        self._shared = linearizer.copies
        self._in_flight = in_flight
        self._weights = updater.parameters

    @property
    def version(self) -> int:
        """Number of updates that the weights in place have seen."""
        return self._updater.version

    def at(self, action: Action) -> AbstractContextManager[None]:
        """Return a context in which the weights of an action are in place."""
        return _NEWEST

    def before_update(self) -> None:
        """Keep what later actions need of the weights, which are about to change."""

    def at_version(self, version: int) -> list[Tensor] | None:
        """Return the weights after so many updates; None if no forward keeps them."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the old weights that are kept, as plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of the same stage."""

    def _copies(self) -> list[Tensor]:
        """Return copies of the weights, which graphs share if they keep any."""
        if self._shared is not None:
            return [self._shared.whole(weight) for weight in self._weights]
        return [weight.detach().clone() for weight in self._weights]

    def _loaded(self, copies: Sequence[Tensor]) -> list[Tensor]:
        """Return copies from a checkpoint, each on the device of its weight."""
        pairs = zip(copies, self._weights, strict=True)
        return [copy.to(weight.device).clone() for copy, weight in pairs]

    @contextmanager
    def _replaced(self, copies: Sequence[Tensor] = ()) -> Iterator[None]:
        """Context manager in which weights may be changed, and that puts the newest ones back.

        Autograd counts no new version meanwhile, as changes go through ``.data``: graphs in
        flight have copies, and optimizers must not notice.

        Args:
            copies: What is in place of the weights, which new graphs keep; by default the
                newest weights, which the caller changes.
        """
        newest = [weight.detach().clone() for weight in self._weights]
        shared = self._shared
        try:
            with nullcontext() if shared is None else shared.sharing(self._weights, copies):
                self._fill(copies)
                yield
        finally:
            self._fill(newest)

    def _fill(self, copies: Sequence[Tensor]) -> None:
        """Copy values into the weights; nothing if there are none."""
        for weight, copy in zip(self._weights, copies, strict=bool(copies)):
            weight.data.copy_(copy)


class HeldWeights(StageWeights):
    """Keeps old weights for as long as a later forward may need them.

    Graphs share the copies that are kept here. The program counts its updates, also those
    that are left out because all batches of a group were skipped; so does this object.

    Args:
        updater: Updater of the weights.
        linearizer: Linearizer of the stage, whose graphs share the copies.
        in_flight: Batches in flight at the stage.
        held_back: The most updates by which a forward is older than the newest weights.
    """

    def __init__(
        self, updater: Updater, linearizer: Linearizer, in_flight: InFlight, held_back: int
    ) -> None:
        super().__init__(updater, linearizer, in_flight)
        self._held_back = held_back
        self.stand_in = "older ones (hold)" if held_back else ""
        # Updates that old weights have seen, and their copies, by updates of the program.
        self._kept: dict[int, tuple[int, list[Tensor]]] = {}
        self._updates = 0
        self._swapped: int | None = None

    @property
    def version(self) -> int:
        """Number of updates that the weights in place have seen."""
        return self._updater.version if self._swapped is None else self._swapped

    def at(self, action: Action) -> AbstractContextManager[None]:
        """Return a context in which the weights of an action are in place; see the base.

        The version of the action counts updates of the program.
        """
        version = action.version
        if version is None:
            return _NEWEST
        self._discard_before(version)
        return _NEWEST if version == self._updates else self._swap(*self._kept[version])

    def before_update(self) -> None:
        """Keep the weights that are about to change."""
        if self._held_back:
            self._kept[self._updates] = self._updater.version, self._copies()
        self._updates += 1
        self._discard_before(self._updates - self._held_back)

    def _discard_before(self, version: int) -> None:
        """Discard the weights that no later forward has."""
        self._kept = {number: kept for number, kept in self._kept.items() if number >= version}

    @contextmanager
    def _swap(self, version: int, copies: Sequence[Tensor]) -> Iterator[None]:
        """Context manager in which old weights are in place, also those that graphs keep."""
        self._swapped = version
        try:
            with self._replaced(copies):
                yield
        finally:
            self._swapped = None

    def state_dict(self) -> dict[str, Any]:
        """Return the old weights that are kept, and their count."""
        return {"updates": self._updates, "kept": dict(self._kept)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of the same stage."""
        self._updates = state["updates"]
        self._kept = {
            number: (version, self._loaded(copies))
            for number, (version, copies) in state["kept"].items()
        }


class CorrectedWeights(StageWeights):
    """Lets the remedies of a stage move its weights for an action, and puts them back.

    The weights are the same parameters in the same memory meanwhile, and autograd counts no
    new version of them. Versions of batches in flight tell how late their backwards are.
    """

    def at(self, action: Action) -> AbstractContextManager[None]:
        """Return a context in which the weights of an action are in place; see the base."""
        changes = None
        if action.kind == "F":
            due = action.due + self._updater.late_updates
            changes = self._remedies.shift_for_forward(due) if due else None
        elif action.kind == "B":
            staleness = self.version - self._in_flight[action.batch].version
            changes = self._remedies.shift_for_backward(staleness) if staleness else None
        return super().at(action) if changes is None else self._moved(changes)

    @contextmanager
    def _moved(self, changes: Sequence[Tensor | None]) -> Iterator[None]:
        """Context manager in which these changes are added to the weights."""
        with self._replaced():
            self._add(changes)
            del changes  # they are as large as the weights
            yield

    def _add(self, changes: Sequence[Tensor | None]) -> None:
        for weight, change in zip(self._weights, changes, strict=True):
            if change is not None:
                weight.data.add_(change)


class PastWeights(StageWeights):
    """Keeps the weights of each version with which a batch in flight was forwarded.

    Under ``stash`` the graphs share these copies, so that they cost nothing.
    """

    def __init__(self, updater: Updater, linearizer: Linearizer, in_flight: InFlight) -> None:
        super().__init__(updater, linearizer, in_flight)
        self._kept: dict[int, list[Tensor]] = {}

    def before_update(self) -> None:
        """Keep the weights that are about to change, if a batch in flight used them."""
        used = {forwarded.version for forwarded in self._in_flight.values()}
        self._kept = {version: kept for version, kept in self._kept.items() if version in used}
        if self.version in used:
            self._kept[self.version] = self._copies()

    def at_version(self, version: int) -> list[Tensor] | None:
        """Return the weights that a forward in flight used; None if they are the newest."""
        return None if version == self.version else self._kept[version]

    def state_dict(self) -> dict[str, Any]:
        """Return the weights that are kept."""
        return {"kept": dict(self._kept)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of the same stage."""
        self._kept = {version: self._loaded(each) for version, each in state["kept"].items()}


def build_weights(
    method: Method,
    parts: StageParts,
    updater: Updater,
    linearizer: Linearizer,
    in_flight: InFlight,
) -> StageWeights:
    """Build the object that sets the weights for each action of a stage.

    Args:
        method: Method of the training.
        parts: Parts of the stage.
        updater: Updater of the weights.
        linearizer: Linearizer of the stage.
        in_flight: Batches in flight at the stage.
    """
    # All stages forward with one old version.
    if method.holds(parts.count):
        held_back = method.held_back(parts.index, parts.count)
        return HeldWeights(updater, linearizer, in_flight, held_back)

    # Remedies move the weights, or compare them with old ones.
    if any(remedy.moves for remedy in method.remedies):
        corrected = CorrectedWeights(updater, linearizer, in_flight)
        passes = {"forward", "backward"} if linearizer.recomputes else {"forward"}
        moving = [remedy.name for remedy in method.remedies if remedy.moves in passes]
        if updater.remedies.each and moving:
            corrected.stand_in = f"moved ones ({moving[0]})"
        return corrected
    if updater.remedies.compares:
        return PastWeights(updater, linearizer, in_flight)
    return StageWeights(updater, linearizer, in_flight)

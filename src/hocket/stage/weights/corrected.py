"""Weights that a remedy puts in place of the newest ones, for the time of one action."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeAlias

import torch
from torch import Tensor

from hocket.methods.method import Method
from hocket.program.action import Action
from hocket.stage.in_flight import InFlight
from hocket.stage.late_gradients.stash_or_live import Linearizer
from hocket.stage.parts import StageParts
from hocket.stage.update.updater import Updater
from hocket.stage.weight_copies.weight_memory import (
    copy_memory,
    distinct_in_memory,
    fill_memory,
    view_copies,
)
from hocket.stage.weights.held import HeldWeights, NewestWeights
from hocket.stage.weights.kept_for_remedies import PastWeights

_Share: TypeAlias = Callable[
    [Sequence[Tensor], Sequence[torch.UntypedStorage]], AbstractContextManager[None]
]


class CorrectedWeights(NewestWeights):
    """Lets the remedies of a stage move its weights for an action, and puts them back.

    The weights are the same parameters in the same memory meanwhile, and autograd counts no
    new version of them.

    Args:
        updater: Updater of the weights, with the remedies.
        linearizer: Linearizer of the stage, whose graphs may keep the moved weights.
        in_flight: Batches whose versions tell how late their backwards are.
    """

    replaces = True

    def __init__(self, updater: Updater, linearizer: Linearizer, in_flight: InFlight) -> None:
        super().__init__(updater)
        self._in_flight = in_flight
        self._remedies = updater.remedies
        self._parameters = updater.parameters
        self._weights = distinct_in_memory(updater.parameters)
        self._share: _Share = lambda weights, copies: nullcontext()  # no graph is kept
        if linearizer.copies is not None:
            self._share = linearizer.copies.sharing

    def at(self, action: Action) -> AbstractContextManager[None]:
        """Return a context in which the weights of an action are in place; see the base."""
        changes = None
        if action.kind == "F" and action.due:
            changes = self._remedies.shift_for_forward(action.due)
        elif action.kind == "B":
            staleness = self.version - self._in_flight[action.batch].version
            changes = self._remedies.shift_for_backward(staleness) if staleness else None
        return super().at(action) if changes is None else self._move(changes)

    @contextmanager
    def _move(self, changes: Sequence[Tensor | None]) -> Iterator[None]:
        """Context manager in which the weights are moved, also those that graphs keep.

        Args:
            changes: What to add to each weight, of its shape; None for nothing.
        """
        newest, moved = copy_memory(self._weights), copy_memory(self._weights)
        views = view_copies(self._parameters, self._weights, moved)
        for view, change in zip(views, changes, strict=True):
            if change is not None:
                view.add_(change)
        try:
            fill_memory(self._weights, moved)
            with self._share(self._weights, moved):
                yield
        finally:
            fill_memory(self._weights, newest)


def build_weights(
    method: Method,
    parts: StageParts,
    updater: Updater,
    linearizer: Linearizer,
    in_flight: InFlight,
) -> NewestWeights:
    """Build the object that sets the weights for each action of a stage.

    Args:
        method: Method of the training.
        parts: Parts of the stage.
        updater: Updater of the weights.
        linearizer: Linearizer of the stage.
        in_flight: Batches in flight at the stage.

    Raises:
        OptionError: A weight shares its memory with others, which old weights would change.
    """
    # All stages forward with one old version.
    if method.holds(parts.count):
        assert linearizer.copies is not None, "a method that holds weights stashes"
        held_back = method.held_back(parts.index, parts.count)
        return HeldWeights(updater, linearizer.copies, held_back, parts.index)

    # Remedies move the weights, or compare them with old ones.
    if any(remedy.moves for remedy in method.remedies):
        corrected = CorrectedWeights(updater, linearizer, in_flight)
        passes = {"forward", "backward"} if linearizer.recomputes else {"forward"}
        moving = [remedy.name for remedy in method.remedies if remedy.moves in passes]
        if updater.remedies and moving:
            corrected.stand_in = f"moved ones ({moving[0]})"
        return corrected
    if updater.remedies.needs_forward_weights:
        return PastWeights(updater, linearizer, in_flight)
    return NewestWeights(updater)

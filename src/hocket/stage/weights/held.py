"""The weights that a stage forwards with: its newest, or older ones that are kept for that.

Old weights are copied into the memory of the parameters for the time of a forward, so that
parameters keep their identity for the optimizer, for hooks and for graphs.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hocket.errors import LinearizeError
from hocket.program.action import Action
from hocket.stage.update.updater import Updater
from hocket.stage.weight_copies.version_copies import VersionCopies
from hocket.stage.weight_copies.weight_memory import (
    copy_memory,
    distinct_in_memory,
    fill_memory,
    from_tensors,
    layouts,
    require_own_memory,
    to_tensors,
)

_NEWEST = nullcontext()


class NewestWeights:
    """Forwards with the weights as they are.

    Args:
        updater: Updater of the weights.

    Attributes:
        replaces: True if some action is done with other weights than the newest.
        stand_in: What forwards see instead of the newest weights, for messages; empty if they
            see these.
    """

    replaces = False
    stand_in = ""

    def __init__(self, updater: Updater) -> None:
        self._updater = updater

    @property
    def version(self) -> int:
        """Number of updates that the weights in place have seen."""
        return self._updater.version

    def at(self, action: Action) -> AbstractContextManager[None]:
        """Return a context in which the weights of an action are in place.

        Args:
            action: Action of the program.
        """
        return _NEWEST

    def before_update(self) -> None:
        """Keep what later actions need of the weights, which are about to change."""

    def at_version(self, version: int) -> list[Tensor] | None:
        """Return the weights that a forward in flight used; None if they are not kept.

        Args:
            version: Number of updates that they had seen.
        """
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the old weights that are kept, as plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of the same stage."""


@dataclass(frozen=True)
class _Version:
    """Old weights of a stage.

    Attributes:
        version: Number of updates that they have seen.
        copies: A copy of the memory of each weight.
    """

    version: int
    copies: list[torch.UntypedStorage]


class HeldWeights(NewestWeights):
    """Keeps old weights for as long as a later forward may need them.

    Graphs share the copies that are kept here. The program counts its updates, also those
    that are left out because all batches of a group were skipped; so does this object.

    Args:
        updater: Updater of the weights.
        copies: Copies of the newest weights, which graphs share.
        held_back: The most updates by which a forward is older than the newest weights.
        stage: Number of the stage, for messages.

    Raises:
        OptionError: The memory of a weight has other things in it.
    """

    replaces = True

    def __init__(
        self, updater: Updater, copies: VersionCopies, held_back: int, stage: int
    ) -> None:
        super().__init__(updater)
        require_own_memory(updater.parameters, stage)
        self._copies = copies
        self._held_back = held_back
        self.stand_in = "older ones (hold)" if held_back else ""
        self._weights = distinct_in_memory(updater.parameters)
        self._layouts = layouts(self._weights)
        self._kept: dict[int, _Version] = {}  # by updates of the program
        self._updates = 0
        self._swapped: int | None = None

    @property
    def version(self) -> int:
        """Number of updates that the weights in place have seen."""
        return self._updater.version if self._swapped is None else self._swapped

    @property
    def kept(self) -> list[int]:
        """Versions that are kept, without the newest one and those in graphs in flight."""
        return list(self._kept)

    def at(self, action: Action) -> AbstractContextManager[None]:
        """Return a context in which the weights of an action are in place; see the base.

        The version of the action counts updates of the program.
        """
        version = action.version
        if version is None:
            return _NEWEST
        self._discard_before(version)
        return _NEWEST if version == self._updates else self._swap(self._kept[version])

    def before_update(self) -> None:
        """Keep the weights that are about to change."""
        if self._held_back:
            copies = self._copies.copy_weights(self._weights)
            self._kept[self._updates] = _Version(self._updater.version, copies)
        self._updates += 1
        self._discard_before(self._updates - self._held_back)

    def _discard_before(self, version: int) -> None:
        """Discard the weights that no later forward has."""
        self._kept = {number: kept for number, kept in self._kept.items() if number >= version}

    @contextmanager
    def _swap(self, old: _Version) -> Iterator[None]:
        """Context manager in which old weights are in place, also those that graphs keep.

        Raises:
            LinearizeError: A weight is laid out in another way than at the beginning.
        """
        if layouts(self._weights) != self._layouts:
            raise LinearizeError(
                "a weight was replaced by one with other strides or in another memory, so "
                "that older weights do not fit it; update weights in place"
            )
        newest = copy_memory(self._weights)  # also what was edited through `.data`
        try:
            fill_memory(self._weights, old.copies)
            self._swapped = old.version
            with self._copies.sharing(self._weights, old.copies):
                yield
        finally:
            self._swapped = None
            fill_memory(self._weights, newest)

    def state_dict(self) -> dict[str, Any]:
        """Return the old weights that are kept, each as flat memory, and their count."""
        return {
            "updates": self._updates,
            "kept": {
                number: {
                    "version": kept.version,
                    "copies": to_tensors(self._weights, kept.copies),
                }
                for number, kept in self._kept.items()
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of the same stage."""
        self._updates = state["updates"]
        self._kept = {
            number: _Version(kept["version"], from_tensors(self._weights, kept["copies"]))
            for number, kept in state["kept"].items()
        }

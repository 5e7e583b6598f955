"""Weights of the forwards in flight, for remedies that compare them with the present ones."""

from typing import Any

import torch
from torch import Tensor

from hocket.stage.in_flight import InFlight
from hocket.stage.late_gradients.stash_or_live import Linearizer
from hocket.stage.update.updater import Updater
from hocket.stage.weight_copies.weight_memory import (
    copy_memory,
    distinct_in_memory,
    from_tensors,
    to_tensors,
    view_copies,
)
from hocket.stage.weights.held import NewestWeights


class PastWeights(NewestWeights):
    """Keeps the weights of each version with which a batch in flight was forwarded.

    Under ``stash`` the graphs share these copies, so that they cost nothing.

    Args:
        updater: Updater of the weights.
        linearizer: Linearizer of the stage.
        in_flight: Batches in flight at the stage.
    """

    def __init__(self, updater: Updater, linearizer: Linearizer, in_flight: InFlight) -> None:
        super().__init__(updater)
        self._in_flight = in_flight
        self._parameters = updater.parameters
        self._weights = distinct_in_memory(updater.parameters)
        self._kept: dict[int, list[torch.UntypedStorage]] = {}
        self._copy = copy_memory
        if linearizer.copies is not None:
            self._copy = linearizer.copies.copy_weights

    @property
    def kept(self) -> list[int]:
        """Versions that are kept, without the newest one."""
        return list(self._kept)

    def before_update(self) -> None:
        """Keep the weights that are about to change, if a batch in flight used them."""
        used = {forwarded.version for forwarded in self._in_flight}
        self._kept = {version: kept for version, kept in self._kept.items() if version in used}
        if self.version in used:
            self._kept[self.version] = self._copy(self._weights)

    def at_version(self, version: int) -> list[Tensor] | None:
        """Return the weights that a forward in flight used; None if they are the newest."""
        if version == self.version:
            return None
        return view_copies(self._parameters, self._weights, self._kept[version])

    def state_dict(self) -> dict[str, Any]:
        """Return the weights that are kept, each as flat memory."""
        kept = self._kept.items()
        return {
            "kept": {version: to_tensors(self._weights, copies) for version, copies in kept}
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of the same stage."""
        self._kept = {
            version: from_tensors(self._weights, tensors)
            for version, tensors in state["kept"].items()
        }

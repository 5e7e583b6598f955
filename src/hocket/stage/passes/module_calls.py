"""Random numbers and precision of the passes of one stage."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from hocket.stage.layers.known_layers import Draws
from hocket.stage.parts import StageParts
from hocket.stage.passes.rng import Pass, seeded_rng
from hocket.stage.setup import Setup

_NOTHING = nullcontext()


class Passes:
    """Context managers in which a stage computes.

    Args:
        setup: Options that all stages share.
        parts: Layers, signal and ports of the stage.
    """

    def __init__(self, setup: Setup, parts: StageParts) -> None:
        self._stage = parts.index
        self._seed = setup.seed + parts.seed_offset
        self._device = setup.device
        self._device_type = setup.device.type  # PyTorch takes a while to say it
        self._autocast_enabled = setup.precision != "fp32"
        self.autocast = setup.autocast

    def computing(
        self, batch: int, which: Pass, draws: Draws = "anything"
    ) -> AbstractContextManager[None]:
        """Return a context manager with the random numbers and the precision of one pass.

        Args:
            batch: Number of the batch.
            which: The pass.
            draws: Generators that the pass may draw from.
        """
        seeded = seeded_rng(self._seed, self._stage, batch, which, self._device, draws)
        # Autocast that is off changes something only inside the caller's own.
        if self._autocast_enabled or torch.is_autocast_enabled(self._device_type):
            return _seeded_and_cast(seeded, self.autocast())
        return seeded

    def differentiating(self) -> AbstractContextManager[object]:
        """Return a context manager for a backward: its types are those of the forward."""
        if torch.is_autocast_enabled(self._device_type):  # by the caller
            return torch.autocast(self._device_type, enabled=False)
        return _NOTHING


@contextmanager
def _seeded_and_cast(
    seeded: AbstractContextManager[None], cast: torch.autocast
) -> Iterator[None]:
    with seeded, cast:
        yield
    # Inside autocast of the caller's it would keep casts of weights that are updated now.
    torch.clear_autocast_cache()

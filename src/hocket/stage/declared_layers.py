"""Check of layers whose classes declare ``plain_forward``, with the first batch of a stage."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from hocket.errors import LinearizeError, list_names, warn
from hocket.restore import numpy_and_python_state
from hocket.stage.known_layers import KnownLayers

_NO_CHECK: AbstractContextManager[None] = nullcontext()


class DeclaredLayers:
    """Layers of a stage that are said to be plain.

    Args:
        known: What is known of them; where precautions are taken, nothing has to be checked.
        stage: Number of the stage, for messages.

    Attributes:
        backward_is_checked: True once a backward has shown that no forward is inside it.
    """

    def __init__(self, known: KnownLayers, stage: int) -> None:
        self._known = known
        self._stage = stage
        self._forward_is_checked = self.backward_is_checked = not known.declared

    def checking_forward(self, inputs: Sequence[Tensor]) -> AbstractContextManager[None]:
        """Return a context manager for a forward, which checks the first one.

        Args:
            inputs: Inputs of the stage, of shape (B, ...).

        Raises:
            LinearizeError: The forward edited an input.
        """
        if self._forward_is_checked or not self._known.plain:
            return _NO_CHECK
        self._forward_is_checked = True
        return self._check_forward(inputs)

    @contextmanager
    def _check_forward(self, inputs: Sequence[Tensor]) -> Iterator[None]:
        devices = {tensor.device for tensor in inputs if tensor.is_cuda}
        versions = [tensor._version for tensor in inputs]
        before = _random_states(devices)
        yield
        names = list_names(self._known.declared)
        if [tensor._version for tensor in inputs] != versions:
            raise LinearizeError(
                f"stage {self._stage}: a forward edits its input in place; plain_forward, "
                f"which says that none does, is declared by {names}; take it from the class of "
                "that forward"
            )
        if _random_states(devices) != before:
            self._known.distrust()
            warn(
                f"stage {self._stage}: random numbers were drawn in a forward, by it or by "
                f"another thread, and plain_forward is declared by {names}; all precautions "
                "are taken as without it, which takes longer"
            )


def _random_states(gpus: set[torch.device]) -> object:
    """Return the states of all generators that are common to a process."""
    states = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, gpus)]
    return [state.tolist() for state in states], numpy_and_python_state()

"""Check of layers whose classes declare ``plain_forward``, with the first batch of a stage."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from hocket.errors import LinearizeError, list_names
from hocket.restore import numpy_and_python_state
from hocket.stage.known_layers import KnownLayers, declares_plain, forwarded_modules

_NO_CHECK: AbstractContextManager[None] = nullcontext()


class DeclaredLayers:
    """Layers of a stage that are said to be plain.

    Args:
        module: Layers of the stage.
        known: What is known of them; where precautions are taken, nothing has to be checked.
        stage: Number of the stage, for messages.

    Attributes:
        backward_is_checked: True once a backward has shown that no forward is inside it.
    """

    def __init__(self, module: nn.Module, known: KnownLayers, stage: int) -> None:
        kinds = {type(layer) for layer in forwarded_modules(module)}
        self._names = sorted(kind.__name__ for kind in kinds if declares_plain(kind))
        self._known = known
        self._stage = stage
        self._forward_is_checked = self.backward_is_checked = not self._names

    def checking_forward(self, inputs: Sequence[Tensor]) -> AbstractContextManager[None]:
        """Return a context manager for a forward, which checks the first one.

        Args:
            inputs: Inputs of the stage, of shape (B, ...).

        Raises:
            LinearizeError: The forward drew random numbers, or edited an input.
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
        found = []
        if [tensor._version for tensor in inputs] != versions:
            found.append("edits its input in place")
        if _random_states(devices) != before:
            found.append("draws random numbers")
        if found:
            raise LinearizeError(
                f"stage {self._stage}: a forward {' and '.join(found)}; plain_forward, which "
                f"says that none does, is declared by {list_names(self._names)}; take it from "
                "the class of that forward"
            )


def _random_states(gpus: set[torch.device]) -> object:
    """Return the states of all generators that are common to a process."""
    states = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, gpus)]
    return [state.tolist() for state in states], numpy_and_python_state()

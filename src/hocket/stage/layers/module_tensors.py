"""Weights and buffers of a module, found without a walk through its layers in every tick."""

from typing import TypeAlias

from torch import Tensor, nn

LayerBuffers: TypeAlias = dict[str, Tensor | None]
"""Buffers of a layer by its own names, as they are now."""


def present_buffer(buffers: LayerBuffers, name: str) -> Tensor | None:
    """Return a buffer of a layer; None if it is gone.

    Args:
        buffers: The buffers; a scripted layer has a mapping without ``get``.
        name: Name of the buffer in its layer.
    """
    return buffers[name] if name in buffers else None  # noqa: SIM401


class ModuleTensors:
    """Weights and buffers of a module whose layers stay the same objects.

    Layers may replace their buffers, and give a weight new memory; no layer may be added.

    Args:
        module: The module.

    Attributes:
        parameters: Its parameters, each once.
    """

    def __init__(self, module: nn.Module) -> None:
        self.parameters = list(module.parameters())
        self._buffers: list[LayerBuffers] = [layer._buffers for layer in module.modules()]

    def all(self) -> list[Tensor]:
        """Return the parameters and the present buffers."""
        return [*self.parameters, *[buffer for _, _, buffer in self.buffers()]]

    def buffers(self) -> list[tuple[LayerBuffers, str, Tensor]]:
        """Return the present buffers, each with all of its layer and its own name there.

        One that several layers share is there for each of them.
        """
        if not any(self._buffers):
            return []
        return [
            (buffers, name, buffer)
            for buffers in self._buffers
            for name, buffer in buffers.items()
            if buffer is not None
        ]

"""Weights and buffers of a module, found without a walk through its layers in every tick."""

from torch import Tensor, nn


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
        self._owners = [
            (f"{prefix}." if prefix else "", layer._buffers)
            for prefix, layer in module.named_modules()
        ]
        self._buffers = [buffers for _, buffers in self._owners]

    def all(self) -> list[Tensor]:
        """Return the parameters and the present buffers."""
        return [*self.parameters, *self.named_buffers().values()]

    def named_buffers(self) -> dict[str, Tensor]:
        """Return the present buffers by name, each once."""
        found: dict[str, Tensor] = {}
        if not any(self._buffers):
            return found
        seen: set[int] = set()
        for prefix, buffers in self._owners:
            for name, buffer in buffers.items():
                if buffer is not None and id(buffer) not in seen:
                    seen.add(id(buffer))
                    found[prefix + name] = buffer
        return found

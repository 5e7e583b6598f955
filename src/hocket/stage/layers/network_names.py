"""Names of the parts of a stage in the network that the user wrote."""

from collections.abc import Iterator

from torch import Tensor, nn


class NetworkNames:
    """Names that parameters, buffers and layers have in the whole network.

    Layers that are cut out of a sequence, or given as a list of stages, have other names. What
    the network does not have keeps its own name.

    Args:
        network: The network; without it all names are those within the stage.

    Attributes:
        parameters: Name of each parameter of the network.
    """

    def __init__(self, network: nn.Module | None = None) -> None:
        named = [] if network is None else list(network.named_modules())
        self._layers = {layer: name for name, layer in named}
        self.parameters: dict[nn.Parameter, str] = {}
        if network is not None:
            self.parameters = {p: name for name, p in network.named_parameters()}

    def of_parameters(self, module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield each parameter of a module once, with its name in the network."""
        for own, parameter in module.named_parameters():
            yield self.parameters.get(parameter, own), parameter

    def of_layers(self, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        """Yield each layer of a module, itself included, with its name in the network."""
        names: dict[str, str] = {}
        for own, layer in module.named_modules():
            parent, _, last = own.rpartition(".")
            inside = ".".join(filter(None, [names.get(parent, ""), last]))
            names[own] = self._layers.get(layer, inside)
            yield names[own], layer

    def of_buffers(self, module: nn.Module) -> Iterator[tuple[str, Tensor]]:
        """Yield each buffer of each layer of a module, with its name in the network."""
        for name, layer in self.of_layers(module):
            for key, buffer in layer._buffers.items():
                if buffer is not None:
                    yield ".".join(filter(None, [name, key])), buffer

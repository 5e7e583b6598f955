"""Weights and buffers of a module, their names, and the outputs that a gradient flows through.

None of these needs a walk through the layers in every tick.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeAlias

from torch import Tensor, nn, strided

LayerBuffers: TypeAlias = dict[str, Tensor | None]
"""Buffers of a layer by its own names, as they are now."""
BufferCopies: TypeAlias = Sequence[tuple[LayerBuffers, str, Tensor]]
"""Copies of buffers, each with all buffers of its layer and its own name there."""
FindFlow: TypeAlias = Callable[[], list[bool]]
"""Finds out for each tensor of an output whether a gradient flows through it."""


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

    Attributes:
        parameters: Its parameters, each once.
    """

    def __init__(self, module: nn.Module) -> None:
        self.parameters = list(module.parameters())
        self._buffers: list[LayerBuffers] = [layer._buffers for layer in module.modules()]
        self._through: list[bool] = []
        self._known_for: Hashable = None  # everything that it depends on

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

    def copy_buffers(self) -> BufferCopies:
        """Return copies of the present buffers, for `restore_buffers`."""
        return [(buffers, name, buffer.clone()) for buffers, name, buffer in self.buffers()]

    def flow_through(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], find: FindFlow
    ) -> list[bool]:
        """Return for each tensor of an output whether a gradient flows through it.

        This is found out once, and again only if other inputs or weights need gradients, for
        some stages have to forward once more for that.

        Args:
            outputs: Tensors of the output.
            inputs: Tensors of the input.
            find: Finds it out.
        """
        sources = (*inputs, *self.parameters)
        depends_on = (len(outputs), *[tensor.requires_grad for tensor in sources])
        if self._known_for != depends_on:
            self._known_for = depends_on
            self._through = find()
        return self._through


def restore_buffers(copies: BufferCopies) -> None:
    """Give buffers the values of copies, in place where that is possible.

    As data, for graphs in flight hold the buffers and no version is to count: BatchNorm's
    kernels change their statistics in the same way.
    """
    for buffers, name, copy in copies:
        if (buffer := present_buffer(buffers, name)) is None:
            continue
        dense = buffer.layout is strided and 0 not in buffer.stride()
        if dense and buffer.shape == copy.shape:
            buffer.data.copy_(copy)
        else:  # it is sparse, or the layer has replaced it by a larger or an expanded one
            buffers[name] = copy.clone()


def find_tables(outputs: Sequence[Tensor], find: FindFlow) -> list[bool]:
    """Return for each tensor of an output whether it is a table, such as one of positions.

    No gradient flows through a table, but through another tensor of the output. The next stage
    takes it as it would in the uncut network, without a gradient, for PyTorch may choose its
    kernels by that. In a stage that learns nothing, activations cannot be told from tables.

    Args:
        outputs: Tensors of the output.
        find: Finds out through which of them a gradient flows.
    """
    if len(outputs) == 1:
        return [False]
    flows = find()
    return [any(flows) and not learned for learned in flows]


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
        network = nn.Module() if network is None else network
        self._layers = {layer: name for name, layer in network.named_modules()}
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

"""Training and evaluation mode of modules."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluation_mode(*modules: nn.Module) -> Iterator[None]:
    """Context manager that puts modules into evaluation mode and restores each layer's mode.

    A layer that the user has frozen in evaluation mode stays frozen.
    """
    with restore_modes(*modules):
        for module in modules:
            for layer in module.modules():
                layer.training = False
        yield


@contextmanager
def restore_modes(*modules: nn.Module) -> Iterator[None]:
    """Context manager that restores the mode of each layer afterwards."""
    modes = {layer: layer.training for module in modules for layer in module.modules()}
    try:
        yield
    finally:
        for layer, training in modes.items():
            layer.training = training


@contextmanager
def training_mode(network: nn.Module, *parts: nn.Module) -> Iterator[None]:
    """Context manager that puts a network into training mode as a whole unless it is in it.

    Args:
        network: The network.
        parts: Modules with layers of it, which get its mode.
    """
    with restore_modes(network, *parts):
        if not network.training:
            for module in (network, *parts):
                module.train(True)
        yield


class TrainingMode:
    """Training mode of a network, with the layers that the user has frozen in evaluation mode.

    A network in training mode is left as it is: layers of it in evaluation mode are frozen.
    Only modules that define ``train`` themselves are told again, as it may freeze some. A
    network in evaluation mode, as pretrained ones come, is put into training mode as a whole,
    but for layers that were frozen when it was last in training mode.
    """

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._frozen: list[nn.Module] = []

    def enter(self) -> None:
        """Put the network into training mode, where it is not."""
        if self._network.training:
            layers = list(self._network.modules())
            frozen = [layer for layer in layers if not layer.training]
            for layer in layers:
                if layer.training and type(layer).train is not nn.Module.train:
                    layer.train(True)  # which may freeze more
            for layer in frozen:
                layer.training = False
            self._frozen = [layer for layer in layers if not layer.training]
            return
        self._network.train(True)
        for layer in self._frozen:
            layer.training = False

"""Training and evaluation mode of modules."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluation_mode(*modules: nn.Module) -> Iterator[None]:
    """Context manager that puts modules into evaluation mode and restores each layer's mode.

    A layer that the user has frozen in evaluation mode stays frozen.
    """
    modes = {layer: layer.training for module in modules for layer in module.modules()}
    try:
        for layer in modes:
            layer.training = False
        yield
    finally:
        for layer, training in modes.items():
            layer.training = training

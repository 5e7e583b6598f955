"""Looking at a network without disturbing its training."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluation_mode(*modules: nn.Module) -> Iterator[None]:
    """Inside, the modules are in evaluation mode; afterwards each layer is as it was.

    A layer that the user had frozen in evaluation mode stays frozen.
    """
    training = {layer: layer.training for module in modules for layer in module.modules()}
    try:
        for layer in training:
            layer.training = False
        yield
    finally:
        for layer, was in training.items():
            layer.training = was

"""A block of modules that is one layer for cutting."""

from torch import nn


class Layer(nn.Sequential):
    """Modules in sequence that are never cut apart, such as convolution, norm and ReLU.

    A plain nn.Sequential inside a network is flattened when the network is cut; this is not.
    """

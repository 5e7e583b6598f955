"""What a cutter of networks takes in one piece."""

from torch import nn


class Layer(nn.Sequential):
    """Modules in turn that belong together, such as convolution, normalisation and ReLU.

    A plain nn.Sequential inside a network is opened when the network is cut; this is not.
    """

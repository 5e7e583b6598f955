"""Multi-layer perceptron, the smallest network that can be cut in several places.

Layers: `hidden0`, `hidden1`, ..., `head`. The first of them also flattens its input, so that
every layer has parameters and can be a stage by itself.
"""

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from hocket.errors import OptionError
from hocket.options.require import require_list
from hocket.zoo.layer import Layer


def mlp(
    *,
    in_features: int = 64,
    hidden: Sequence[int] = (256, 256, 256),
    num_classes: int = 10,
    batch_norm: bool = False,
) -> nn.Sequential:
    """Build linear layers with ReLU between them, from (B, ...) to (B, num_classes).

    Args:
        in_features: Number of elements of one input, of any shape.
        hidden: Widths of the hidden layers; may be empty.
        num_classes: Length of the output.
        batch_norm: Whether each hidden layer has a BatchNorm before its ReLU.

    Raises:
        OptionError: ``hidden`` is no list, or a width is below 1.

    >>> list(dict(mlp(hidden=(32, 16)).named_children()))
    ['hidden0', 'hidden1', 'head']
    """
    hidden = require_list("mlp: hidden", hidden)
    widths = [in_features, *hidden, num_classes]
    if min(widths) < 1:
        raise OptionError(f"mlp: widths are {widths}; every one must be at least 1")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, (inputs, outputs) in enumerate(zip(widths[:-2], hidden, strict=True)):
        layer = Layer(nn.Linear(inputs, outputs))
        if batch_norm:
            layer.append(nn.BatchNorm1d(outputs))
        layers[f"hidden{number}"] = layer.append(nn.ReLU())
    layers["head"] = Layer(nn.Linear(widths[-2], num_classes))
    first = next(iter(layers))
    layers[first] = Layer(nn.Flatten(), *layers[first].children())
    return nn.Sequential(layers)

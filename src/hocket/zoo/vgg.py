"""VGG with BatchNorm for ImageNet as DGL cuts it, one layer per convolution.

Layers: `conv1_1` ... `conv5_4` (group, then convolution from 1, the usual names), `head`. The
max-pooling that ends a group belongs to its last convolution, so that a cut there sends the
smaller map.

Source: Simonyan, Zisserman, ICLR 2015, arXiv 1409.1556, table 1, columns B and E.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from torch import nn

from hocket.errors import OptionError
from hocket.zoo.layer import Layer
from hocket.zoo.residual import conv_norm_relu

WIDTHS = (64, 128, 256, 512, 512)


def _make_builder(
    name: str, convolutions: Sequence[int], summary: str
) -> Callable[..., nn.Sequential]:
    """Return the function that builds a network of so many convolutions in each group."""

    def build(
        *, num_classes: int = 1000, in_channels: int = 3, dropout: float = 0.5
    ) -> nn.Sequential:
        """Build groups of 3x3 convolutions, each of which halves the sides, and a classifier.

        Args:
            num_classes: Length of the output.
            in_channels: Channels of the images.
            dropout: Dropout probability in the classifier; DGL trained with 0.

        Raises:
            OptionError: The dropout is not in [0, 1).
        """
        if not 0 <= dropout < 1:
            raise OptionError(f"{name}: dropout is {dropout}; give a fraction in [0, 1)")

        # Groups of convolutions, of which the last one halves the sides.
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        inputs = in_channels
        for group, (width, count) in enumerate(zip(WIDTHS, convolutions, strict=True), start=1):
            for number in range(1, count + 1):
                # With a bias, as in the published counts.
                layer = conv_norm_relu(inputs, width, 3, bias=True)
                if number == count:
                    layer.add_module("pool", nn.MaxPool2d(2))
                layers[f"conv{group}_{number}"] = layer
                inputs = width

        # The classifier.
        layers["head"] = Layer(
            OrderedDict(
                pool=nn.AdaptiveAvgPool2d(7),
                flatten=nn.Flatten(),
                linear1=nn.Linear(inputs * 7 * 7, 4096),
                relu1=nn.ReLU(),
                dropout1=nn.Dropout(dropout),
                linear2=nn.Linear(4096, 4096),
                relu2=nn.ReLU(),
                dropout2=nn.Dropout(dropout),
                linear3=nn.Linear(4096, num_classes),
            )
        )
        return nn.Sequential(layers)

    build.__name__ = build.__qualname__ = name
    build.__doc__ = f"Build {summary}.\n\n        {build.__doc__}"
    return build


vgg13_bn = _make_builder(
    "vgg13_bn",
    (2, 2, 2, 2, 2),
    "VGG-13 with BatchNorm: 10 convolutions, 133,053,736 parameters",
)
vgg19_bn = _make_builder(
    "vgg19_bn",
    (2, 2, 4, 4, 4),
    "VGG-19 with BatchNorm: 16 convolutions, 143,678,248 parameters",
)

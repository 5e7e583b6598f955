"""Cuts of the networks in the papers.

A plan lists the layers at which stages 1, 2, ... begin; stage 0 begins at the first layer.

Sources: FDG, arXiv 1906.09108, and its official code; ADL, arXiv 2012.03747, and its code; DGL,
arXiv 1901.08164, section 4, and its code. Where the ADL code moves a cut of the FDG paper, the
plan here follows the paper.
"""

from collections.abc import Mapping
from types import MappingProxyType

from hocket.errors import OptionError

_BY_GROUP = ("layer2_0", "layer3_0")

PLANS: Mapping[str, Mapping[int, tuple[str, ...]]] = MappingProxyType(
    {
        "resnet20": {
            2: ("layer2_1",),
            3: _BY_GROUP,
            4: ("layer1_0", "layer2_0", "layer3_0"),  # ADL code
        },
        "resnet56": {
            2: ("layer2_4",),
            3: _BY_GROUP,
            4: ("layer1_6", "layer2_4", "layer3_2"),
            8: (  # ADL code
                "layer1_2",
                "layer1_6",
                "layer2_1",
                "layer2_5",
                "layer3_0",
                "layer3_4",
                "layer3_8",
            ),
        },
        "resnet110": {
            2: ("layer2_9",),
            3: _BY_GROUP,
            4: ("layer1_13", "layer2_9", "layer3_5"),
        },
        # Each group has 200 blocks, so these cuts are uneven; they are as published.
        "resnet1202": {
            2: ("layer2_50",),
            3: _BY_GROUP,
            4: ("layer1_75", "layer2_50", "layer3_25"),
        },
        "resnet18": {
            2: ("layer3_0",),
            3: ("layer2_0", "layer3_1"),
            4: ("layer1_0", "layer2_0", "layer3_0"),  # ADL code
        },
        "wrn28_10": {
            2: ("layer2_2",),
            3: _BY_GROUP,
            4: ("layer1_3", "layer2_2", "layer3_1"),
        },
        # DGL counts convolutions: 1 or 3 per stage; the last stage takes what is left.
        "vgg13_bn": {
            4: ("conv2_2", "conv4_1", "conv5_2"),
            10: (
                "conv1_2",
                "conv2_1",
                "conv2_2",
                "conv3_1",
                "conv3_2",
                "conv4_1",
                "conv4_2",
                "conv5_1",
                "conv5_2",
            ),
        },
        # DGL: 8 or 4 convolutions per stage.
        "vgg19_bn": {
            2: ("conv4_1",),
            4: ("conv3_1", "conv4_1", "conv5_1"),
        },
    }
)


def paper_plan(network: str, stages: int) -> tuple[str, ...]:
    """Return the names of the layers at which stages 1, 2, ... begin in the paper.

    Args:
        network: Name of a network of the zoo.
        stages: Number of stages to cut it into.

    Raises:
        OptionError: No paper cut this network, or not into this number of stages.

    >>> paper_plan("resnet56", stages=4)
    ('layer1_6', 'layer2_4', 'layer3_2')
    """
    if network not in PLANS:
        raise OptionError(
            f"no paper cuts {network!r}; there are plans for {', '.join(PLANS)}; "
            "any other network can be cut by measured cost"
        )
    if stages not in PLANS[network]:
        known = ", ".join(map(str, PLANS[network]))
        raise OptionError(
            f"no paper cuts {network!r} into {stages} stages; "
            f"there are plans for {known} stages"
        )
    return PLANS[network][stages]

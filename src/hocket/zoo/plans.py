"""Cuts of the networks in the papers.

A plan lists the layers at which stages 1, 2, ... begin, as ``--plan`` does; stage 0 begins at
the first layer.

Sources: FDG, arXiv 1906.09108, and its official code; ADL, arXiv 2012.03747, and its code; DGL,
arXiv 1901.08164, section 4, and its code. Where the ADL code moves a cut of the FDG paper, the
plan here follows the paper.
"""

from collections.abc import Mapping
from types import MappingProxyType

from hocket.errors import OptionError

_BY_GROUP = "layer2_0,layer3_0"
_CUTS = {
    "resnet20": ("layer2_1", _BY_GROUP, "layer1_0,layer2_0,layer3_0"),  # the last: ADL code
    "resnet56": (
        "layer2_4",
        _BY_GROUP,
        "layer1_6,layer2_4,layer3_2",
        "layer1_2,layer1_6,layer2_1,layer2_5,layer3_0,layer3_4,layer3_8",  # ADL code
    ),
    "resnet110": ("layer2_9", _BY_GROUP, "layer1_13,layer2_9,layer3_5"),
    # Each group has 200 blocks, so these cuts are uneven; they are as published.
    "resnet1202": ("layer2_50", _BY_GROUP, "layer1_75,layer2_50,layer3_25"),
    # The last: ADL code.
    "resnet18": ("layer3_0", "layer2_0,layer3_1", "layer1_0,layer2_0,layer3_0"),
    "wrn28_10": ("layer2_2", _BY_GROUP, "layer1_3,layer2_2,layer3_1"),
    # DGL counts convolutions: 1 or 3 per stage; the last stage takes what is left.
    "vgg13_bn": (
        "conv2_2,conv4_1,conv5_2",
        "conv1_2,conv2_1,conv2_2,conv3_1,conv3_2,conv4_1,conv4_2,conv5_1,conv5_2",
    ),
    # DGL: 8 or 4 convolutions per stage.
    "vgg19_bn": ("conv4_1", "conv3_1,conv4_1,conv5_1"),
}
PLANS: Mapping[str, Mapping[int, tuple[str, ...]]] = MappingProxyType(
    {
        network: {plan.count(",") + 2: tuple(plan.split(",")) for plan in plans}
        for network, plans in _CUTS.items()
    }
)
"""The cuts by network and number of stages."""


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

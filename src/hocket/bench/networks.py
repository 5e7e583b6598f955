"""Networks of the zoo as the measurements use them: made for the data, cut as in the papers."""

import inspect
import math
from collections.abc import Sequence

from torch import nn

from hocket import zoo
from hocket.cut import Plan


def build_for(network: str, shape: Sequence[int], classes: int) -> nn.Sequential:
    """A network of the zoo for such inputs and outputs.

    Args:
        network: Its name.
        shape: One input, without the batch.
        classes: Length of the output.

    Raises:
        OptionError: There is no such network.

    >>> build_for("resnet8", (1, 8, 8), classes=5).stem.conv.in_channels
    1
    """
    fitting: dict[str, object] = {
        "num_classes": classes,
        "in_channels": shape[0],
        "in_features": math.prod(shape),
    }
    builder = zoo.NETWORKS.get(network)
    taken = inspect.signature(builder).parameters if builder else {}
    return zoo.build(network, **{name: v for name, v in fitting.items() if name in taken})


def cut(network: str, stages: int) -> int | Plan:
    """Where the paper that used the network cut it; else the number, to be balanced.

    >>> cut("resnet20", stages=2), cut("mlp", stages=2)
    (Plan(cuts=('layer2_1',)), 2)
    """
    known = zoo.PLANS.get(network, {})
    return Plan(zoo.paper_plan(network, stages)) if stages in known else stages

"""Where the measurements cut a network: as the paper that used it, or balanced."""

from hocket import zoo
from hocket.cut import Plan


def cut(network: str, stages: int) -> int | Plan:
    """Where the paper that used the network cut it; else the number, to be balanced.

    >>> cut("resnet20", stages=2), cut("mlp", stages=2)
    (Plan(cuts=('layer2_1',)), 2)
    """
    known = zoo.PLANS.get(network, {})
    return Plan(zoo.paper_plan(network, stages)) if stages in known else stages

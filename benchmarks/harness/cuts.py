"""Where the measurements cut a network: as the paper that used it, or balanced."""

from hocket import zoo
from hocket.options import Named
from hocket.partition import Plan


def paper_cut(network: str, stages: int) -> int | Plan:
    """Where the paper that used the network cut it; else the number, to be balanced.

    >>> cut("resnet20", stages=2), cut("mlp", stages=2)
    (Plan(cuts=('layer2_1',), signature=''), 2)
    """
    name = Named.parse(network).name
    known = zoo.PLANS.get(name, {})
    return Plan(zoo.paper_plan(name, stages)) if stages in known else stages

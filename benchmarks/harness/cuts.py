"""Cuts of the measured networks: those of the paper that used them, or balanced."""

from hocket import zoo
from hocket.options import Named
from hocket.partition import Plan


def paper_cut(network: str, stages: int) -> int | Plan:
    """Return the cut of the paper that used the network; if none did, the number of stages.

    >>> paper_cut("resnet20", stages=2), paper_cut("mlp", stages=2)
    (Plan(cuts=('layer2_1',), signature=''), 2)
    """
    name = Named.parse(network).name
    known = zoo.PLANS.get(name, {})
    return Plan(zoo.paper_plan(name, stages)) if stages in known else stages

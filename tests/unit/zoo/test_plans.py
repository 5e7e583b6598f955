"""The plans of the papers fit their networks."""

import pytest
import torch
from torch import nn

from hocket import Plan, zoo
from hocket.partition import build_stages


def cut(name, stages):
    """Return the stages of a network by the plan of its paper."""
    with torch.device("meta"):
        return build_stages(zoo.NETWORKS[name](), Plan(zoo.paper_plan(name, stages)))


@pytest.mark.parametrize("network", zoo.PLANS)
def test_cuts_are_layers_in_order_and_leave_no_stage_empty(network):
    for stages in zoo.PLANS[network]:
        assert len(cut(network, stages)) == stages


@pytest.mark.parametrize(
    ("network", "stages", "per_stage"),
    [("vgg13_bn", 10, 1), ("vgg13_bn", 4, 3), ("vgg19_bn", 2, 8), ("vgg19_bn", 4, 4)],
)
def test_vgg_stages_have_as_many_convolutions_as_dgl_says(network, stages, per_stage):
    counts = [
        sum(isinstance(module, nn.Conv2d) for module in part.modules())
        for part in cut(network, stages)
    ]
    assert set(counts[:-1]) == {per_stage}
    assert 0 < counts[-1] <= per_stage


def test_resnet110_is_cut_in_the_middle():
    first, second = cut("resnet110", 2)
    assert len(first) == len(second)

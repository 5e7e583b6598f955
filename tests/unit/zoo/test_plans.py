"""The plans of the papers fit their networks."""

import itertools

import pytest
import torch
from torch import nn

from hocket import zoo
from hocket.errors import OptionError


def cut(network, plan):
    """Return the stages of a network, as sequences that share its layers."""
    names = [name for name, _ in network.named_children()]
    bounds = [0, *(names.index(name) for name in plan), len(names)]
    return [network[start:end] for start, end in itertools.pairwise(bounds)]


@pytest.mark.parametrize("network", zoo.PLANS)
def test_cuts_are_layers_in_order_and_leave_no_stage_empty(network):
    with torch.device("meta"):
        chain = zoo.NETWORKS[network]()
    for stages in zoo.PLANS[network]:
        parts = cut(chain, zoo.paper_plan(network, stages))
        assert len(parts) == stages
        assert all(len(part) > 0 for part in parts)


@pytest.mark.parametrize(
    ("network", "stages", "per_stage"),
    [("vgg13_bn", 10, 1), ("vgg13_bn", 4, 3), ("vgg19_bn", 2, 8), ("vgg19_bn", 4, 4)],
)
def test_vgg_stages_have_as_many_convolutions_as_dgl_says(network, stages, per_stage):
    with torch.device("meta"):
        parts = cut(zoo.NETWORKS[network](), zoo.paper_plan(network, stages))
    counts = [sum(isinstance(m, nn.Conv2d) for m in part.modules()) for part in parts]
    assert set(counts[:-1]) == {per_stage}
    assert 0 < counts[-1] <= per_stage


def test_resnet110_is_cut_in_the_middle():
    with torch.device("meta"):
        first, second = cut(zoo.resnet110(), zoo.paper_plan("resnet110", 2))
    assert len(first) == len(second)


def test_a_network_and_a_number_of_stages_that_no_paper_cuts_are_refused():
    with pytest.raises(OptionError, match="'resnet56' into 7 stages; there are plans for 2, 3"):
        zoo.paper_plan("resnet56", 7)
    with pytest.raises(OptionError, match="no paper cuts 'mlp'; there are plans for resnet20"):
        zoo.paper_plan("mlp", 2)

"""The networks have the parameters that the papers and torchvision print."""

import pytest
import torch

from hocket import zoo

# Exact number, number in print, millions of the last printed digit.
PUBLISHED = {
    "resnet20": (269_722, 0.27, 0.01),
    "resnet32": (464_154, 0.46, 0.01),
    "resnet44": (658_586, 0.66, 0.01),
    "resnet56": (853_018, 0.85, 0.01),
    "resnet110": (1_727_962, 1.7, 0.1),
    "resnet1202": (19_421_274, 19.4, 0.1),
    "resnet18": (11_173_962, 11.2, 0.1),
    "wrn28_10": (36_479_194, 36.5, 0.1),
    "vgg13_bn": (133_053_736, 133.053736, 1e-6),
    "vgg19_bn": (143_678_248, 143.678248, 1e-6),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_as_published(name):
    exact, millions, digit = PUBLISHED[name]
    with torch.device("meta"):
        counted = sum(each.numel() for each in zoo.NETWORKS[name]().parameters())
    assert counted == exact
    assert abs(counted / 1e6 - millions) <= digit / 2


@pytest.mark.parametrize(("pooling", "halved"), [("aux", (1, 3)), ("buffer", (2, 4))])
def test_dgl6_doubles_the_channels_where_it_halves_the_sides(pooling, halved):
    channels, side = 128, 32
    with torch.device("meta"):
        network, x = zoo.dgl6(pooling=pooling), torch.empty(2, 3, 32, 32)
    for block, layer in enumerate(network[:6]):
        if block in halved:
            channels, side = 2 * channels, side // 2
        x = layer(x)
        assert x.shape == (2, channels, side, side)
    hidden = [m.out_features for m in network.head if isinstance(m, torch.nn.Linear)]
    assert hidden == [2048, 2048, 10]


def test_dni3_ends_in_one_pixel_of_128_channels():
    with torch.device("meta"):
        network, x = zoo.dni3(), torch.empty(2, 3, 32, 32)
    sides = []
    for layer in network[:3]:
        x = layer(x)
        sides.append(tuple(x.shape[1:]))
    assert sides == [(128, 10, 10), (128, 3, 3), (128, 1, 1)]


def test_cifar_resnets_may_be_drawn_by_he():
    torch.manual_seed(0)
    weight = zoo.resnet8(init="he").layer3_0.body.conv1.weight
    assert weight.std().item() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.02)

"""Every network of the zoo has its published size, and what cutting and engines rely on."""

import pytest
import torch

from hocket import zoo
from hocket.errors import DataError, OptionError
from hocket.zoo.residual import PadShortcut

# Shape of the input, shape of the output; other networks take 32x32 images to 10 classes.
SHAPES = {
    "mlp": ((2, 64), (2, 10)),
    "gpt": ((2, 16), (2, 16, 256)),
    **dict.fromkeys(("vgg13_bn", "vgg19_bn"), ((2, 3, 64, 64), (2, 1000))),
}


def shapes(name):
    return SHAPES.get(name, ((2, 3, 32, 32), (2, 10)))


def example(name):
    """A batch of inputs: token ids for the transformer, numbers for the others."""
    shape, _ = shapes(name)
    if name == "gpt":
        return torch.randint(256, shape)
    return torch.randn(shape)


# The others of the builder of resnet1202, which takes seconds, have fewer of the same blocks.
@pytest.mark.parametrize("name", sorted({*zoo.NETWORKS} - {"resnet1202"}))
def test_layers_compose_to_the_output_and_each_has_parameters(name):
    with torch.device("meta"):
        network, x = zoo.NETWORKS[name](), example(name)
    assert type(network) is torch.nn.Sequential
    for layer in network:
        assert list(layer.parameters())
        x = layer(x)
        assert isinstance(x, torch.Tensor)
    assert x.shape == shapes(name)[1]
    assert not [m for m in network.modules() if getattr(m, "inplace", False)]


@pytest.mark.parametrize("name", ["mlp", "gpt", "resnet8", "resnet20"])
def test_no_layer_changes_its_input_and_every_parameter_gets_a_gradient(name):
    torch.manual_seed(0)
    network, x = zoo.NETWORKS[name](), example(name)
    for layer in network:
        before = x.clone()
        after = layer(x)
        assert torch.equal(x, before)
        x = after
    x.square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in network.parameters())


@pytest.mark.parametrize(
    ("name", "options", "shape"),
    [
        ("resnet8", {"num_classes": 7, "in_channels": 1}, (2, 1, 8, 8)),
        ("resnet18", {"num_classes": 7, "in_channels": 1}, (2, 1, 8, 8)),
        ("dgl6", {"num_classes": 7, "in_channels": 1, "pooling": "buffer"}, (2, 1, 8, 8)),
        ("mlp", {"num_classes": 7, "hidden": (), "in_features": 64}, (2, 1, 8, 8)),
        ("mlp", {"num_classes": 7, "hidden": [5], "batch_norm": True}, (2, 1, 8, 8)),
    ],
)
def test_options_reach_the_network(name, options, shape):
    assert zoo.NETWORKS[name](**options)(torch.randn(shape)).shape == (2, 7)


def test_corner6_does_not_see_the_last_two_rows_and_columns():
    map_ = torch.rand(2, 64, 8, 8)
    edge = map_.clone()
    edge[:, :, 6:] = edge[:, :, :, 6:] = 0
    corner, everywhere = zoo.resnet8(pooling="corner6").head, zoo.resnet8().head
    assert torch.equal(corner(map_), corner(edge))
    assert not torch.equal(everywhere(map_), everywhere(edge))
    torch.testing.assert_close(corner.pool(map_)[..., 0, 0], map_[:, :, :6, :6].mean((2, 3)))
    torch.testing.assert_close(everywhere.pool(map_)[..., 0, 0], map_.mean((2, 3)))


def test_pad_shortcut_subsamples_and_appends_zeros():
    map_ = torch.rand(2, 3, 4, 4)
    shortcut = PadShortcut(3, 5, stride=2)(map_)
    assert shortcut.shape == (2, 5, 2, 2)
    assert torch.equal(shortcut[:, :3], map_[:, :, ::2, ::2])
    assert not shortcut[:, 3:].any()


def test_gpt_sees_only_the_past_and_its_context():
    torch.manual_seed(0)
    network = zoo.gpt(vocab=11, context=8, width=16, depth=2, heads=2)
    ids = torch.arange(8)[None]
    changed = ids.clone()
    changed[0, 5] = 10
    before, after = network(ids), network(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])
    with pytest.raises(DataError, match="9 tokens, this network's context is 8"):
        network(torch.zeros(1, 9, dtype=torch.long))


def test_gpt_drops_nothing_in_evaluation():
    network, ids = zoo.gpt(depth=1, dropout=0.5), torch.zeros(1, 4, dtype=torch.long)
    assert not torch.equal(network(ids), network(ids))
    network.eval()
    assert torch.equal(network(ids), network(ids))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet8", {"pooling": "max"}, "pooling is 'max'; use 'global' or 'corner6'"),
        ("resnet8", {"init": "zero"}, "init is 'zero'; use 'pytorch' or 'he'"),
        ("dgl6", {"pooling": "max", "width": 0}, r"'aux' or 'buffer'\n.*width is 0; use"),
        ("mlp", {"hidden": 8}, r"hidden is 8; give a list, such as \[8\]"),
        ("mlp", {"hidden": (8, 0)}, r"\[64, 8, 0, 10\]; every one must be at least 1"),
        ("vgg13_bn", {"dropout": 1.0}, r"vgg13_bn: dropout is 1.0; .*in \[0, 1\)"),
        ("gpt", {"dropout": -1.0}, r"dropout is -1.0; give a fraction in \[0, 1\)"),
        ("gpt", {"heads": 3}, "3 heads do not divide width 128"),
        ("gpt", {"depth": 0}, "depth is 0"),
    ],
)
def test_options_out_of_range_are_refused(name, options, message):
    with torch.device("meta"), pytest.raises(OptionError, match=message):
        zoo.NETWORKS[name](**options)


def test_every_builder_is_exported_under_its_name():
    for name, builder in zoo.NETWORKS.items():
        assert getattr(zoo, name) is builder
        assert f"import {name} as {name}\n" in zoo.__loader__.get_source(zoo.__name__)


# The networks have the parameters that the papers and torchvision print.

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

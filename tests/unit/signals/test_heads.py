"""Heads have the layers of the paper's table and refuse outputs of other shapes."""

import itertools

import pytest
import torch
from torch import nn

from hocket.errors import OptionError
from hocket.signals.heads import build_head


def layers(network, kind):
    return [module for module in network.modules() if isinstance(module, kind)]


def widths(network):
    """Return the inputs and outputs of each linear layer."""
    return [(layer.in_features, layer.out_features) for layer in layers(network, nn.Linear)]


@pytest.mark.parametrize(
    ("kind", "sides", "norms", "hidden"),
    [("mlp-sr", [1] * 3, 3, 3), ("mlp", [], 0, 3), ("cnn", [3] * 2, 3, 0)],
)
def test_heads_on_maps_are_those_of_the_table(kind, sides, norms, hidden):
    head = build_head(kind, torch.Size([32, 16, 16]), outputs=10)
    convolutions = layers(head, nn.Conv2d)
    assert {(c.in_channels, c.out_channels) for c in convolutions} <= {(32, 32)}
    assert [(c.kernel_size, c.bias) for c in convolutions] == [((s, s), None) for s in sides]
    assert widths(head) == [(128, 128)] * hidden + [(128, 10)]
    assert len(layers(head, nn.BatchNorm2d)) == norms
    assert len(layers(head, nn.BatchNorm1d)) == hidden
    assert kind == "cnn" or len(layers(head, nn.ReLU)) == len(sides) + hidden
    maps = torch.randn(4, 32, 16, 16)
    assert head(maps).shape == (4, 10)
    assert kind != "cnn" or head.trunk(maps).shape == maps.shape


@pytest.mark.parametrize("kind", ["mlp-sr", "mlp"])
@pytest.mark.parametrize(
    ("sides", "quarters"),
    [((8, 8), (2, 2)), ((7, 9), (2, 3)), ((1, 1), (1, 1)), ((28, 5), (7, 2))],
)
def test_maps_are_pooled_to_a_quarter_of_each_side_rounded_up(kind, sides, quarters):
    head = build_head(kind, torch.Size([4, *sides]), outputs=10)
    x = torch.randn(3, 4, *sides)
    assert head.trunk(x).shape == (3, 4, *quarters)
    assert head(x).shape == (3, 10)


@pytest.mark.parametrize(
    ("shape", "norm", "batch"),
    [((12,), nn.BatchNorm1d, (4, 12)), ((5, 12), nn.LayerNorm, (4, 5, 12))],
)
@pytest.mark.parametrize(("kind", "squeezes"), [("mlp-sr", 3), ("mlp", 0)])
def test_vectors_and_tokens_keep_their_width(kind, squeezes, shape, norm, batch):
    head = build_head(kind, torch.Size(shape), outputs=10)
    assert widths(head) == [(12, 12)] * (squeezes + 3) + [(12, 10)]
    assert [layer.bias is None for layer in layers(head, nn.Linear)] == (
        [True] * squeezes + [False] * 4
    )
    assert len(layers(head, norm)) == len(layers(head, nn.ReLU)) == squeezes + 3
    assert head(torch.randn(batch)).shape == (*batch[:-1], 10)


@pytest.mark.parametrize("shape", [(3, 8, 8), (12,), (5, 12)])
@pytest.mark.parametrize(
    ("width", "depth", "hidden"),
    [(1.0, 3, [12] * 3), (0.5, 2, [6] * 2), (2, 1, [24]), (1.0, 0, []), (0.01, 4, [1] * 4)],
)
def test_width_is_a_factor_on_hidden_layers_and_depth_their_number(shape, width, depth, hidden):
    head = build_head("mlp", torch.Size(shape), outputs=10, width=width, depth=depth)
    sizes = [12, *hidden, 10]
    assert widths(head) == list(itertools.pairwise(sizes))
    assert len(layers(head, nn.ReLU)) == depth
    assert head(torch.randn(4, *shape)).shape == (4, *shape[:-1] * (len(shape) == 2), 10)


def test_at_the_papers_width_and_depth_a_head_is_drawn_layer_by_layer():
    torch.manual_seed(0)
    head = build_head("mlp-sr", torch.Size([4, 8, 8]), outputs=10)
    torch.manual_seed(0)
    drawn = [nn.Conv2d(4, 4, 1, bias=False) for _ in range(3)]
    drawn += [nn.Linear(16, 16) for _ in range(3)] + [nn.Linear(16, 10)]
    ours = [p for p in head.modules() if isinstance(p, nn.Conv2d | nn.Linear)]
    for layer, expected in zip(ours, drawn, strict=True):
        assert all(map(torch.equal, layer.parameters(), expected.parameters()))


def test_a_token_is_predicted_from_itself_alone():
    head = build_head("mlp-sr", torch.Size([5, 12]), outputs=10)
    x = torch.randn(4, 5, 12)
    torch.testing.assert_close(head(x)[2, 3], head(x[2:3, 3:4])[0, 0])


@pytest.mark.parametrize(
    ("kind", "shape", "outputs", "said"),
    [
        ("cnn", (5, 12), 10, "'cnn' needs maps .*; use 'mlp-sr'"),
        *(
            ("mlp", shape, 10, "wanted is a map .*, tokens .* or a vector .*cut")
            for shape in [(), (2, 3, 4, 5), (3, 0, 4)]
        ),
        ("linear", (12,), 10, "head is 'linear'; use 'mlp-sr' or 'mlp' or 'cnn'"),
        ("mlp", (12,), 0, "0 outputs predicts nothing; ask for at least 1"),
    ],
)
def test_a_head_that_cannot_be_built_is_refused(kind, shape, outputs, said):
    with pytest.raises(OptionError, match=said):
        build_head(kind, torch.Size(shape), outputs=outputs)

"""Synthesizers start at zero, can learn, and read targets only if they are conditional."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hocket.errors import DataError, OptionError
from hocket.signals.synthetic import Synthesizer

# Shape of one sample, shape of the targets of a batch of 4.
LAYOUTS = {"map": ((3, 6, 5), (4,)), "tokens": ((7, 3), (4, 7)), "vector": ((3,), (4,))}

every_layout = pytest.mark.parametrize(("shape", "labels"), LAYOUTS.values(), ids=LAYOUTS)
every_condition = pytest.mark.parametrize("classes", [None, 10], ids=["dni", "cdni"])


def batch(shape, labels):
    torch.manual_seed(0)
    return torch.randn(4, *shape), torch.randint(10, labels)


def trained(shape, classes):
    """Build a synthesizer whose last layer is not zero."""
    synthesizer = Synthesizer(torch.Size(shape), classes)
    nn.init.normal_(synthesizer.guess.weight)
    return synthesizer


@every_layout
@every_condition
def test_the_first_gradient_is_exactly_zero(shape, labels, classes):
    output, targets = batch(shape, labels)
    gradient = Synthesizer(torch.Size(shape), classes)(output, targets)
    assert gradient.shape == output.shape
    assert not gradient.any()


@pytest.mark.parametrize(
    ("shape", "kind", "norm"),
    [
        ((64, 8, 8), nn.Conv2d, nn.BatchNorm2d),
        ((64,), nn.Linear, nn.BatchNorm1d),
        ((7, 64), nn.Linear, nn.LayerNorm),
    ],
)
@every_condition
def test_there_are_three_layers_of_128_and_on_maps_5x5_convolutions(shape, kind, norm, classes):
    synthesizer = Synthesizer(torch.Size(shape), classes)
    hidden = [m for m in synthesizer.hidden if isinstance(m, kind)]
    layers = [synthesizer.entry, *hidden, synthesizer.guess]
    assert [layer.weight.shape[:2] for layer in layers] == [(128, 64), (128, 128), (64, 128)]
    for layer in layers if kind is nn.Conv2d else []:
        assert (layer.kernel_size, layer.padding) == ((5, 5), (2, 2))
    assert sum(isinstance(m, norm) for m in synthesizer.modules()) == 2
    linear = [m for m in synthesizer.modules() if isinstance(m, nn.Linear)]
    conditions = [m for m in linear if m not in layers]
    assert [m.weight.shape for m in conditions] == ([(128, 10)] if classes else [])


@every_layout
def test_only_a_conditional_synthesizer_reads_the_targets_which_may_have_few_bits(
    shape, labels
):
    output, targets = batch(shape, labels)
    others = (targets + 1 + torch.arange(4).view(-1, *[1] * (len(labels) - 1))) % 10
    plain, conditional = trained(shape, None), trained(shape, 10)
    assert torch.equal(plain(output, targets), plain(output, None))
    wanted = conditional(output, targets)
    assert not torch.allclose(wanted, conditional(output, others))
    assert torch.equal(wanted, conditional(output, targets.to(torch.uint8)))


@every_layout
def test_a_target_that_the_loss_leaves_out_is_no_condition(shape, labels):
    output, targets = batch(shape, labels)
    targets[0] = -100
    synthesizer = trained(shape, classes=10)
    one_hot = F.one_hot(targets.clamp(min=0), 10).float()
    one_hot[0] = 0.0
    condition = synthesizer.target(one_hot)
    if len(shape) == 3:
        condition = condition[:, :, None, None]
    hidden = synthesizer.entry(output) + condition
    torch.testing.assert_close(
        synthesizer(output, targets), synthesizer.guess(synthesizer.hidden(hidden))
    )


@every_layout
def test_a_conditional_synthesizer_refuses_targets_that_are_no_class_indices(shape, labels):
    output, targets = batch(shape, labels)
    synthesizer = Synthesizer(torch.Size(shape), 10)
    wrong = {
        "Non": None,
        "dict": {"label": targets},
        r"\(4": targets + 0.7,
        r"\(3": targets[:3],
    }
    for got, each in wrong.items():
        with pytest.raises(DataError, match=rf"targets of .*{got}.*, wanted .* of shape \(4"):
            synthesizer(output, each)


def test_other_shapes_are_refused():
    with pytest.raises(OptionError, match="wanted is a map"):
        Synthesizer(torch.Size([2, 3, 4, 5]), None)

"""Similarity matching: its features, its zeros, and its refusals."""

import pytest
import torch
from torch import nn

from hocket.errors import DataError, OptionError
from hocket.signals.similarity import SimilarityMatching, build_matching, similarities


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6])
@pytest.mark.parametrize("width", [7, 512, 4096])
def test_features_without_direction_have_no_similarity_and_no_gradient(value, width):
    x = torch.randn(4, width)
    x[2] = value
    x.requires_grad_()
    cosines = similarities(x)
    assert not cosines[2].any()
    assert not cosines[:, 2].any()
    (cosines - 1).square().sum().backward()
    assert torch.isfinite(x.grad).all()
    assert not x.grad[2].any()
    assert x.grad[1].any()


def test_channels_without_spread_leave_every_gradient_finite():
    x = torch.randn(4, 5, 6, 6)
    x[1, 2] = x[3] = 0
    x.requires_grad_()
    SimilarityMatching(nn.Identity(), 3)(x, torch.tensor([0, 1, 1, 2])).backward()
    assert torch.isfinite(x.grad).all()


def test_cosines_keep_their_digits_under_autocast():
    matching, x, labels = build_matching((16,), 3), torch.randn(4, 16), torch.tensor([0] * 4)
    with torch.autocast("cpu", torch.bfloat16):
        same = matching(x[:1].expand(4, -1), labels)
    assert same.item() < 1e-12, "in bf16 a cosine of 1 is off by a thousandth"


SAMPLES = "the targets of 4 samples are {}.*whole numbers; leave similarity at 0"


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (torch.zeros(4), SAMPLES.format(r"a tensor of shape \(4,\) and type torch.float32")),
        (torch.zeros(4, 3, dtype=torch.long), SAMPLES.format(r"a tensor of shape \(4, 3\)")),
        (torch.zeros(3, dtype=torch.long), SAMPLES.format(r"a tensor of shape \(3,\)")),
        ({"label": 1}, SAMPLES.format("a dict")),
        (torch.tensor([0, 1, -100, -100]), "some are below 0, as ignored ones are; leave"),
    ],
)
def test_targets_that_are_not_class_indices_are_refused(targets, said):
    with pytest.raises(DataError, match=said):
        build_matching((6,), 3)(torch.zeros(4, 6), targets)


@pytest.mark.parametrize(
    ("shape", "classes", "said"),
    [
        ((5, 12), 3, r"needs maps .* or vectors .* is \(5, 12\); leave similarity at 0"),
        ((12,), 1, "needs at least 2 classes, and there is 1; leave similarity at 0"),
        ((2,), 3, r"3 features or more, a stage's output of shape \(2,\) has 2; cut elsewhere"),
        ((2, 1, 1), 3, r"of shape \(2, 1, 1\) has 2; cut elsewhere, or leave similarity at 0"),
        ((2, 3, 4, 5), 3, "wanted is a map"),
    ],
)
def test_outputs_that_cannot_be_compared_are_refused(shape, classes, said):
    with pytest.raises(OptionError, match=said):
        build_matching(shape, classes)


def test_ignored_samples_on_a_gpu_are_found_without_waiting_for_it(monkeypatch):
    """The loss is NaN then, which every stage looks for."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    matching = build_matching((8,), classes=3)
    output = torch.randn(3, 8)
    assert matching(output, torch.tensor([0, -100, 2])).isnan()
    assert matching(output, torch.tensor([0, 1, 2])).isfinite()

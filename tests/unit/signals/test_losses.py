"""Losses and errors of samples, tokens and pixels, and of targets that are ignored."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch.nn import CrossEntropyLoss

from hocket.errors import DataError, OptionError
from hocket.signals.losses import (
    compute_loss,
    count_averaged,
    count_errors,
    cross_entropy,
    may_draw,
    weigh_targets,
    zero_without_targets,
)

make = torch.Generator().manual_seed(0)
SCORES_BC = torch.randn(6, 4, generator=make)
SCORES_BTC = torch.randn(2, 3, 4, generator=make)
# Equal sizes, so that only their order tells.
SCORES_BCHW = torch.randn(2, 4, 4, 4, generator=make)


def test_pixels_have_their_classes_in_dimension_1():
    targets = SCORES_BCHW.argmax(1)
    assert count_errors(SCORES_BCHW, targets) == (0, 32)
    assert count_errors(SCORES_BCHW[:, :, :3], targets[:, :3]) == (0, 24)


def test_classes_are_where_the_targets_say_if_only_one_dimension_fits():
    assert count_errors(SCORES_BTC.mT, SCORES_BTC.argmax(-1)) == (0, 6)
    kept = int((SCORES_BTC.argmax(-1) != 1).sum())
    assert 0 < kept < 6
    assert count_errors(SCORES_BTC.mT, SCORES_BTC.argmax(-1), ignored=1) == (0, kept)
    last = SCORES_BCHW[:, :3].movedim(1, -1)
    assert count_errors(last, last.argmax(-1)) == (0, 32)
    assert cross_entropy(last, last.argmax(-1)) < cross_entropy(last, last.argmin(-1))


def test_of_a_smoothed_target_all_classes_have_a_share():
    """Close to the definition, for each target that is not ignored."""
    targets = torch.tensor([0, 1, -100, 3, 0, 1])
    kept = targets >= 0
    wanted = 0.8 * F.one_hot(targets[kept], 4) + 0.2 / 4
    by_hand = -(wanted * SCORES_BC[kept].log_softmax(-1)).sum(-1).mean()
    torch.testing.assert_close(cross_entropy(SCORES_BC, targets, label_smoothing=0.2), by_hand)


@pytest.mark.parametrize(
    "scores", [SCORES_BC, SCORES_BTC, SCORES_BCHW], ids=["BC", "BTC", "BCHW"]
)
def test_targets_may_be_probabilities_of_the_classes(scores):
    """Close to the definition in float64, whichever of the two has more precision."""
    dimension = 1 if scores.dim() == 4 else -1
    shares = torch.rand(scores.shape, dtype=torch.double).softmax(dimension)
    by_hand = -(shares * scores.double().log_softmax(dimension)).sum(dimension).mean()
    torch.testing.assert_close(cross_entropy(scores, shares), by_hand)
    torch.testing.assert_close(cross_entropy(scores.double(), shares.float()), by_hand)
    classes = scores.argmin(dimension)
    one_hot = torch.zeros_like(scores).scatter_(dimension, classes.unsqueeze(dimension), 1.0)
    hard, soft = (cross_entropy(scores, t, label_smoothing=0.1) for t in (classes, one_hot))
    torch.testing.assert_close(soft, hard)


def test_cross_entropy_draws_no_random_numbers_smoothed_or_not():
    smoothed = partial(cross_entropy, label_smoothing=0.1)
    assert [may_draw(loss) for loss in (cross_entropy, smoothed)] == [False, False]
    assert may_draw(partial(F.cross_entropy, label_smoothing=0.1))


def test_ignored_targets_are_neither_errors_nor_part_of_a_mean():
    targets = SCORES_BC.argmax(-1)
    loss = cross_entropy(SCORES_BC[:3], targets[:3])
    targets[3:] = -100
    torch.testing.assert_close(cross_entropy(SCORES_BC, targets), loss)
    for no_class in (-100, -1, 4, 255):
        targets[3:] = no_class
        assert count_errors(SCORES_BC, targets) == (0, 3)


@pytest.mark.parametrize("scores", [SCORES_BC, SCORES_BTC, SCORES_BCHW])
def test_a_batch_of_ignored_targets_has_no_loss_and_no_gradient(scores):
    scores = scores.clone().requires_grad_()
    shape = scores[:, 0].shape if scores.dim() == 4 else scores.shape[:-1]
    loss = cross_entropy(scores, torch.full(shape, -100))
    loss.backward()
    assert loss == 0
    assert not scores.grad.any()


@pytest.mark.parametrize("targets", [[1, 0, 2], [1, -100, 2], [-100, -100, -100]])
@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 1, 1)])
def test_a_device_that_nobody_waits_for_has_the_same_loss(targets, shape):
    """Bit-equal, loss and gradient."""
    ours, theirs = (
        torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
        for _ in range(2)
    )
    classes = torch.tensor(targets).reshape(shape[:1] + shape[2:])
    loss = cross_entropy(ours, classes)
    other = zero_without_targets(F.cross_entropy(theirs, classes), classes)
    loss.backward()
    other.backward()
    assert torch.equal(loss, other)
    assert torch.equal(ours.grad, theirs.grad)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
@pytest.mark.parametrize("classes", [128, 256, 300])
def test_targets_of_few_bits_are_those_classes(dtype, classes):
    """Numbers of classes, and -100, do not fit into all of the types."""
    targets = torch.tensor([0, 156 if dtype is torch.uint8 and classes > 156 else 100])
    scores = F.one_hot(targets, classes).float()
    assert count_errors(scores, targets.to(dtype)) == (0, 2)
    assert count_errors(scores.roll(1), targets.to(dtype)) == (2, 2)
    assert cross_entropy(scores, targets.to(dtype)) == cross_entropy(scores, targets)
    assert cross_entropy(scores, targets.bool()) == cross_entropy(scores, targets.bool().long())


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8])
def test_counted_targets_are_class_indices_that_are_not_ignored(dtype):
    def count(targets, ignored=-100):
        return weigh_targets(CrossEntropyLoss(ignore_index=ignored), targets)

    targets = torch.tensor([[3, -100], [-100, 0]], dtype=dtype)
    assert (count(targets), count(targets, ignored=0)) == (2, 3)
    masks = torch.tensor([[3, 156], [255, 255]], dtype=torch.uint8)
    assert (count(masks), count(masks, ignored=255)) == (4, 2)
    assert count(torch.tensor([0.5, -100.0])) is None
    assert count(torch.tensor([True, False])) is None
    assert count({"labels": torch.tensor([1])}) is None
    weights = torch.tensor([0.25, 1.0, 1.0, 0.5])
    for build in (CrossEntropyLoss, partial(partial, F.cross_entropy)):
        assert weigh_targets(build(weight=weights), targets) == 0.75
        assert weigh_targets(build(weight=weights, ignore_index=0), targets) == 0.5


@pytest.mark.parametrize(
    ("output", "targets", "said"),
    [
        ({"logits": SCORES_BC}, torch.zeros(6), "an output of type dict and targets of shape"),
        (SCORES_BC, torch.zeros(6), r"targets of shape \(6,\); it takes one tensor of class"),
        (SCORES_BTC, torch.zeros(2).long(), r"an output of shape \(2, 3, 4\) and targets"),
        (SCORES_BC, None, r"targets of type NoneType.*give a loss of your own"),
        (
            SimpleNamespace(loss=None, logits=SCORES_BTC),
            torch.zeros(2, 3).long(),
            "its inputs have 'labels': give loss=lambda output, _: output.loss",
        ),
    ],
)
def test_what_cross_entropy_cannot_take_is_refused(output, targets, said):
    with pytest.raises(DataError, match=f"cross_entropy got .*{said}"):
        cross_entropy(output, targets)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda o, t: (o.mean(), {"part": o.sum()}), "the loss gives a value of type tuple"),
        (lambda o, t: (o - 1).square(), r"the loss gives a value of shape \(6, 4\)"),
        (lambda o, t: None, "value of type NoneType .* must return a tensor of one number"),
    ],
)
def test_a_loss_that_is_not_one_number_is_refused(loss, said):
    for shape in ((), (1,), (1, 1)):
        one = compute_loss(lambda o, t, shape=shape: o.sum().reshape(shape), SCORES_BC, None)
        assert one.shape == shape
    with pytest.raises(OptionError, match=said):
        compute_loss(loss, SCORES_BC, None)


def test_an_error_inside_a_loss_names_the_shapes_it_was_called_with():
    scores = SCORES_BC.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="must match") as caught:
        compute_loss(lambda o, t: (o - t).square().mean(), scores, torch.zeros(6, 3))
    assert "an output of shape (6, 4) and targets of shape (6, 3)" in caught.value.__notes__[0]


@pytest.mark.parametrize("scores", [SCORES_BC, SCORES_BTC])
def test_errors_are_counted(scores):
    right = scores.argmax(-1)
    assert count_errors(scores, right) == (0, 6)
    labels = right.clone().flatten()
    labels[:2] = (labels[:2] + 1) % 4
    assert count_errors(scores, labels.view_as(right)) == (2, 6)
    # Targets of a language model are shifted.
    of_samples = (0, 6) if scores is SCORES_BC else None
    assert count_errors(SimpleNamespace(logits=scores), right) == of_samples


@pytest.mark.parametrize(
    ("output", "targets"),
    [
        (SCORES_BC, torch.randn(6)),
        (SCORES_BC, torch.randn(6, 4)),
        (SCORES_BC, torch.zeros(6, 4, dtype=torch.int64)),
        (SCORES_BC[:, :1], torch.zeros(6).long()),  # a score is no choice of a class
        ((SCORES_BC, SCORES_BC), torch.zeros(6).long()),
        (SCORES_BC, {"targets": torch.zeros(6).long()}),
    ],
)
def test_without_class_indices_no_errors_are_counted(output, targets):
    assert count_errors(output, targets) is None


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_a_regression_ignores_no_number(shape):
    targets = torch.tensor([-100, 3, -100, 50])
    assert count_averaged(cross_entropy, torch.zeros(shape), targets, None) == 4
    assert count_averaged(cross_entropy, torch.zeros(4, 60), targets, None) == 2


def test_an_output_with_a_loss_of_its_own_has_that_one():
    output = SimpleNamespace(loss=torch.tensor(2.0), logits=SCORES_BC)
    assert cross_entropy(output, torch.zeros(6).long()) is output.loss
    with pytest.raises(DataError, match="cross_entropy got"):
        cross_entropy(output, torch.zeros(6).long(), label_smoothing=0.1)

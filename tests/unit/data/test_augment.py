"""Augmentation equals a naive loop; a mixed batch has its shares in inputs and targets."""

import pytest
import torch
from torch.nn import functional as F

from hocket.data import Batches, InMemory, Mix, MixedExamples, load
from hocket.data.augment import Chain, Crop, Flip, Normalise
from hocket.data.randomness import make_generator
from hocket.errors import DataError, OptionError

CLASSES = 5
TARGETS = torch.randint(CLASSES, (40,), generator=torch.Generator().manual_seed(0))
SHARES = F.one_hot(TARGETS, CLASSES).double()
IMAGES = SHARES[:, :, None, None].expand(-1, -1, 6, 8).contiguous()
"""Images with a channel for each class, in which only that of the own class is 1."""

WAYS = {"mixup": {"mixup": 1.0}, "cutmix": {"cutmix": 1.0}, "both": {"mixup": 1, "cutmix": 1}}


def new_generator():
    return make_generator(0, "augmentation", 0)


@pytest.fixture
def images():
    return torch.randint(1, 256, (64, 3, 9, 7), dtype=torch.uint8, generator=new_generator())


@pytest.mark.parametrize("padding", [0, 1, 4])
def test_crop_equals_a_loop_over_images(images, padding):
    cropped = Crop(padding)(images, new_generator())
    y, x = torch.randint(2 * padding + 1, (2, len(images)), generator=new_generator())
    for n, image in enumerate(images):
        canvas = torch.zeros(3, 9 + 2 * padding, 7 + 2 * padding, dtype=torch.uint8)
        canvas[:, padding : padding + 9, padding : padding + 7] = image
        assert torch.equal(cropped[n], canvas[:, y[n] : y[n] + 9, x[n] : x[n] + 7])
    assert cropped.is_contiguous()


def test_flip_equals_a_loop_over_images(images):
    flipped = Flip()(images, new_generator())
    mirrored = torch.rand(len(images), generator=new_generator()) < 0.5
    for n, image in enumerate(images):
        assert torch.equal(flipped[n], image.flip(-1) if mirrored[n] else image)
    assert 16 < int(mirrored.sum()) < 48


def test_normalise_is_the_formula_and_leaves_its_input_alone(images):
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    expected = images.double() / 255
    for c in range(3):
        expected[:, c] = (expected[:, c] - mean[c]) / std[c]
    floats = images.float()
    for given in (images, floats):
        got = Normalise(mean, std)(given, new_generator())
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(floats, images.float())


def test_chain_passes_one_generator_through_and_pads_with_black_before_it_normalises(images):
    got = Chain((Crop(2), Flip()))(images, new_generator())
    shared = new_generator()
    assert torch.equal(got, Flip()(Crop(2)(images, shared), shared))
    white = torch.full((200, 1, 6, 6), 255, dtype=torch.uint8)
    got = Chain((Crop(4), Normalise((0.5,), (0.5,))))(white, new_generator())
    assert set(got.unique().tolist()) == {-1.0, 1.0}


def mixed(seed=0, **alphas):
    return Mix(CLASSES, **alphas)(IMAGES, TARGETS, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("way", WAYS)
def test_targets_are_the_shares_of_the_classes_in_the_inputs(way):
    for seed in range(20):
        inputs, targets = mixed(seed, **WAYS[way])
        torch.testing.assert_close(inputs.mean((2, 3)), targets, rtol=1e-12, atol=1e-12)
        assert (targets.count_nonzero(1) <= 2).all()
    torch.testing.assert_close(targets.sum(1), torch.ones(40, dtype=torch.double))


def test_an_image_is_cut_by_cutmix_and_faded_by_mixup():
    pixels = {way: mixed(3, **WAYS[way])[0].unique().tolist() for way in ("mixup", "cutmix")}
    assert pixels["cutmix"] == [0.0, 1.0]
    assert len(pixels["mixup"]) == 4
    both = {len(mixed(seed, **WAYS["both"])[0].unique()) for seed in range(20)}
    assert both == {2, 4}


@pytest.mark.parametrize(("alpha", "least", "most"), [(1e6, 0.49, 0.51), (1e-6, 0.0, 0.0)])
def test_alpha_decides_how_equal_the_shares_are(alpha, least, most):
    """Statistical: for each of 20 batches, of which the smaller share is compared."""
    for seed in range(20):
        _, targets = mixed(seed, mixup=alpha)
        pairs = targets[targets.count_nonzero(1) == 2]
        smaller = pairs.topk(2).values[:, 1] if len(pairs) else torch.zeros(1)
        assert least <= smaller.min() <= smaller.max() <= most


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("workers", [0, 2])
def test_mixed_batches_are_bit_equal_in_any_epoch_again(way, workers):
    examples = MixedExamples(InMemory(IMAGES, TARGETS), Mix(CLASSES, **WAYS[way]))
    alone = Batches(examples, 8, seed=3, shuffle=True)
    with torch.device("meta"):  # whatever the default
        epoch, resumed = list(alone), alone.with_options(workers=workers).serve(0, first=2)
    pairs = list(zip(epoch[2:], resumed, strict=True))
    assert len(pairs) == 3
    assert all(torch.equal(a, b) for pair in pairs for a, b in zip(*pair, strict=True))
    assert not torch.equal(epoch[0][1], next(iter(alone))[1])  # of the next epoch


def test_mixing_a_batch_leaves_it_as_it_was_and_may_draw_from_the_global_generator():
    torch.manual_seed(1)
    first = Mix(CLASSES, cutmix=1.0)(IMAGES, TARGETS)
    assert torch.equal(IMAGES.mean((2, 3)), SHARES)
    torch.manual_seed(1)
    again = Mix(CLASSES, cutmix=1.0)(IMAGES, TARGETS)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_impossible_mixing_is_refused(tmp_path):
    for options, said in (
        ({}, "mixup and cutmix are both 0, which mixes nothing; give one"),
        ({"mixup": -1.0}, "mixup is -1.0; use a number of at least 0"),
        ({"mixup": 1.0, "cutmix": -0.5}, "cutmix is -0.5; use a number of at least 0"),
    ):
        with pytest.raises(OptionError, match=f"batches cannot be mixed:\n  - {said}"):
            Mix(CLASSES, **options)
    (tmp_path / "a.txt").write_text("abcd" * 50)
    with pytest.raises(OptionError, match=r"the data set 'text' has tokens, which are no num"):
        load("text", data_dir=tmp_path, batch_size=2, context=8, mixup=0.2)
    with pytest.raises(OptionError, match=r"'synthetic' has vectors, not images of which"):
        load("synthetic", batch_size=2, shape=[5], cutmix=1.0)


@pytest.mark.parametrize(
    ("inputs", "targets", "said"),
    [
        (TARGETS, TARGETS, r"inputs \(40,\) of torch.int64 with targets \(40,\) cannot be"),
        (IMAGES, SHARES, r"with targets \(40, 5\) cannot be mixed"),
        (SHARES, TARGETS, r"cutmix replaces parts of images .* shape \(40, 5\)"),
        (IMAGES, TARGETS + 1, "targets range from 1 to 5, but 5 classes want 0 to 4"),
    ],
    ids=["tokens", "shares", "vectors", "other classes"],
)
def test_batches_that_cannot_be_mixed_are_refused(inputs, targets, said):
    with pytest.raises(DataError, match=said):
        Mix(CLASSES, cutmix=1.0)(inputs, targets)

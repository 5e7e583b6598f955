"""Augmentation equals a naive loop over images, and every image has its own random numbers."""

import pytest
import torch

from hocket.data.augment import Chain, Crop, Flip, Normalise
from hocket.data.randomness import make_generator


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

"""Digits and synthetic examples, which need no files."""

import numpy as np
import pytest
import torch

from hocket.data import load
from hocket.errors import OptionError


def everything(batches):
    """Return all inputs and all targets of the first epoch."""
    inputs, targets = zip(*batches.serve(0), strict=True)
    return torch.cat(inputs), torch.cat(targets)


def test_the_split_of_digits_is_always_the_same_and_its_training_images_normalise():
    one, other = (load("digits", batch_size=100, seed=s) for s in (0, 1))
    assert len(one.train.examples) + len(one.test.examples) == 1797
    assert torch.equal(everything(one.test)[0], everything(other.test)[0])
    # Of 360 test images; the split must not move with a new NumPy or scikit-learn.
    assert everything(one.test)[1].bincount().tolist() == [
        31, 35, 39, 33, 44, 29, 40, 40, 28, 41,
    ]  # fmt: skip
    inputs, _ = everything(one.train)
    assert inputs.shape == (1437, 1, 8, 8)
    assert abs(float(inputs.mean())) < 1e-3
    assert abs(float(inputs.std()) - 1) < 1e-3


def test_digits_are_those_of_scikit_learn():
    images, labels = pytest.importorskip("sklearn.datasets").load_digits(return_X_y=True)
    order = np.random.RandomState(0).permutation(len(images))
    data = load("digits", batch_size=4)
    examples = [data.train.examples, data.test.examples]
    inputs = torch.cat([e.inputs for e in examples]).flatten(1)
    assert inputs.tolist() == images[order].tolist()
    assert torch.cat([e.targets for e in examples]).tolist() == labels[order].tolist()


@pytest.mark.parametrize("shape", [(12,), (3, 5, 4)])
def test_synthetic_classes_can_be_told_apart(shape):
    data = load("synthetic", batch_size=50, seed=2, shape=shape, classes=5, noise=0.5)
    inputs, targets = everything(data.train)
    assert inputs.shape == (1024, *shape)
    assert data.kind == ("images" if len(shape) == 3 else "vectors")
    centres = torch.stack([inputs[targets == c].mean(0) for c in range(5)]).flatten(1)
    tests, truth = everything(data.test)
    nearest = torch.cdist(tests.flatten(1), centres).argmin(1)
    assert (nearest == truth).float().mean() > 0.95


def test_synthetic_classes_are_balanced():
    data = load("synthetic", batch_size=50, classes=3, examples=32, shape=(2,))
    assert sorted(everything(data.train)[1].bincount().tolist()) == [10, 11, 11]


@pytest.mark.parametrize("shape", [(2, 2), (), (0,), (3, -1, 4)])
def test_synthetic_refuses_all_bad_options_at_once(shape):
    counts = dict.fromkeys(("classes", "examples", "test_examples"), 0)
    with pytest.raises(OptionError, match=r"give \(D,\) for vectors") as refusal:
        load("synthetic", batch_size=4, shape=shape, noise=-1.0, **counts)
    for problem in (*(f"{name} is 0" for name in counts), "noise is -1.0"):
        assert problem in str(refusal.value)

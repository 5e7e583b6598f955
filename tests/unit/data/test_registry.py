"""Data sets by name: wrong names and options are refused with the valid ones."""

from pathlib import Path

import numpy as np
import pytest
import torch

from hocket.data import DATA, check_targets, load
from hocket.errors import DataError, OptionError

READ_FILES = ("cifar10", "cifar100", "folder", "text")


def test_the_names_are_those_documented_and_those_without_files_are_loaded():
    assert list(DATA) == ["digits", "cifar10", "cifar100", "folder", "text", "synthetic"]
    with pytest.raises(TypeError):
        DATA["more"] = load
    for name in ("digits", "synthetic"):
        data = load(name, batch_size=7, seed=3)
        assert (data.name, data.train.batch_size, data.train.seed) == (name, 7, 3)


def test_a_required_option_is_asked_for(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "from hocket.data import Data\ndef made(*, batch_size, seed, rows) -> Data: ..."
    )
    with pytest.raises(OptionError, match="option 'rows' is missing"):
        load(f"{file}:made", batch_size=4)


HERE, LONG = {"data_dir": Path("here")}, {"data_dir": Path("x" * 300)}


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("cifar", {}, "unknown data set 'cifar' .did you mean 'cifar10' or 'cifar100'"),
        ("zzz", {}, "unknown data set 'zzz'; there are: digits, cifar10"),
        ("synthetic:classes=4", {}, "cannot read 'classes=4' in .*give options as arguments"),
        ("cifar10", HERE | {"subsets": 3}, "'subsets' .did you mean 'subset'"),
        ("cifar10", HERE | {"colour": 1}, "'colour'; there are: subset, augment"),
        ("digits", {"x": 1}, "unknown option 'x'; there are: none"),
        *((name, {}, "reads files; pass their folder with --data-dir") for name in READ_FILES),
        *((name, LONG, "cannot read .* too long: 'x") for name in READ_FILES),
        *(
            (name, HERE, "it reads no files; drop --data-dir")
            for name in ("digits", "synthetic")
        ),
    ],
)
def test_names_and_options_that_do_not_exist_are_refused(name, options, said):
    with pytest.raises(DataError if options is LONG else OptionError, match=said):
        load(name, batch_size=4, **options)


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (torch.tensor([0, 10]), "range from 0 to 10, but 10 classes want 0 to 9"),
        (torch.tensor([-1, 3]), "range from -1 to 3, but 10 classes want 0 to 9"),
        (torch.zeros(3), "targets are torch.float32; give class numbers as integers"),
        (torch.zeros(3, dtype=torch.complex64), "targets are torch.complex64; give class"),
    ],
)
def test_targets_that_are_no_class_numbers_are_refused(targets, said):
    check_targets(torch.tensor([[0, 9], [3, 4]]), classes=10)
    with pytest.raises(DataError, match=said):
        check_targets(targets, classes=10)


# Digits and synthetic examples, which need no files.


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

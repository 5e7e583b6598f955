"""Data sets by name: wrong names and options are refused with the valid ones."""

from pathlib import Path

import pytest
import torch

from hocket.data import DATA, Data, check_targets, load, options
from hocket.errors import DataError, OptionError

READ_FILES = ("cifar10", "cifar100", "folder", "text")


def test_the_names_are_those_documented_and_those_without_files_are_loaded():
    assert list(DATA) == ["digits", "cifar10", "cifar100", "folder", "text", "synthetic"]
    with pytest.raises(TypeError):
        DATA["more"] = load
    for name in ("digits", "synthetic"):
        data = load(name, batch_size=7, seed=3)
        assert (data.name, data.train.batch_size, data.train.seed) == (name, 7, 3)


@pytest.mark.parametrize("name", DATA)
def test_every_function_takes_batch_size_and_seed_by_keyword(name):
    annotations = DATA[name].__annotations__
    assert annotations["return"] is Data
    assert (annotations["batch_size"], annotations["seed"]) == (int, int)
    assert ("data_dir" in annotations) == (name in READ_FILES)
    assert not {"data_dir", "batch_size", "seed"} & set(options(name))


def test_a_required_option_is_asked_for(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "from hocket.data import Data\ndef made(*, batch_size, seed, rows) -> Data: ..."
    )
    with pytest.raises(OptionError, match="option 'rows' is missing"):
        load(f"{file}:made", batch_size=4)


HERE = {"data_dir": Path("here")}


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
        *(
            (name, HERE, "it reads no files; drop --data-dir")
            for name in ("digits", "synthetic")
        ),
    ],
)
def test_names_and_options_that_do_not_exist_are_refused(name, options, said):
    with pytest.raises(OptionError, match=said):
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

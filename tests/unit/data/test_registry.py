"""Data sets by name: wrong names and options are refused with the valid ones."""

from pathlib import Path

import pytest

from hocket.data import DATA, Data, load, options
from hocket.errors import OptionError

READ_FILES = ("cifar10", "cifar100", "folder", "text")


def test_the_names_are_those_documented():
    assert list(DATA) == ["digits", "cifar10", "cifar100", "folder", "text", "synthetic"]
    with pytest.raises(TypeError):
        DATA["more"] = load


@pytest.mark.parametrize("name", DATA)
def test_every_function_takes_batch_size_and_seed_by_keyword(name):
    annotations = DATA[name].__annotations__
    assert annotations["return"] is Data
    assert (annotations["batch_size"], annotations["seed"]) == (int, int)
    assert ("data_dir" in annotations) == (name in READ_FILES)
    assert not {"data_dir", "batch_size", "seed"} & set(options(name))


def test_data_sets_without_files_are_loaded():
    for name in ("digits", "synthetic"):
        data = load(name, batch_size=7, seed=3)
        assert (data.name, data.train.batch_size, data.train.seed) == (name, 7, 3)


def test_an_unknown_name_is_answered_with_close_ones():
    with pytest.raises(OptionError) as refusal:
        load("cifar", batch_size=4)
    assert "unknown data set 'cifar' (did you mean 'cifar10' or 'cifar100'?)" in str(
        refusal.value
    )
    assert f"there are: {', '.join(DATA)}" in str(refusal.value)
    with pytest.raises(
        OptionError, match=r"unknown data set 'zzz'; there are: digits, cifar10"
    ):
        options("zzz")


def test_options_written_as_on_the_command_line_are_explained():
    with pytest.raises(
        OptionError, match=r"cannot read 'classes=4' in .*give options as arguments"
    ):
        load("synthetic:classes=4", batch_size=4)


def test_all_unknown_options_are_named_with_the_valid_ones():
    with pytest.raises(OptionError) as refusal:
        load("cifar10", data_dir=Path(), batch_size=4, subsets=3, colour="red")
    valid = "there are: subset, augment, normalisation"
    assert f"unknown option 'subsets' (did you mean 'subset'?); {valid}" in str(refusal.value)
    assert f"unknown option 'colour'; {valid}" in str(refusal.value)


def test_a_data_set_without_options_says_so():
    with pytest.raises(
        OptionError, match=r"'digits':\n  - unknown option 'x'; there are: none"
    ):
        load("digits", batch_size=4, x=1)


def test_a_required_option_is_asked_for(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "from hocket.data import Data\ndef made(*, batch_size, seed, rows) -> Data: ..."
    )
    with pytest.raises(OptionError, match="option 'rows' is missing"):
        load(f"{file}:made", batch_size=4)


@pytest.mark.parametrize("name", READ_FILES)
def test_the_folder_is_asked_for(name):
    with pytest.raises(OptionError, match=r"reads files; pass their folder with --data-dir"):
        load(name, batch_size=4)


@pytest.mark.parametrize("name", ["digits", "synthetic"])
def test_a_folder_that_would_be_ignored_is_refused(name):
    with pytest.raises(
        OptionError, match=r"it reads no files; drop --data-dir \(data_dir='here"
    ):
        load(name, batch_size=4, data_dir=Path("here"))

"""Images in a folder: read by `datasets`, decoded when served, errors name what is missing."""

import sys
from itertools import chain
from operator import methodcaller
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from contract.small import different
from hocket.data import load
from hocket.data.images import NORMALISE
from hocket.data.randomness import make_generator
from hocket.errors import DataError, OptionError

datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Keep the tables that `datasets` writes out of the home folder."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def write_images(root, test="test", size=(40, 32), dog="dog"):
    """Write images of two classes, red cats and blue dogs, and return their folder."""
    for part, number in (("train", 6), (test, 2)):
        for name, colour in ((dog, (0, 0, 255)), ("cat", (255, 0, 0))):
            folder = root / "images" / part / name
            folder.mkdir(parents=True)
            for n in range(number):
                Image.new("RGB", size, colour).save(folder / f"{n}.png")
    return root / "images"


FORMATS = [methodcaller("with_format", kind) for kind in (None, "torch", "numpy")]
NOT_DECODED = methodcaller("cast_column", "image", datasets.Image(decode=False))


def save(root, change=FORMATS[0], **splits):
    """Save splits of columns as `datasets` does, and return their folder."""
    folder = root / "saved"
    tables = {name: change(datasets.Dataset.from_dict(each)) for name, each in splits.items()}
    datasets.DatasetDict(tables).save_to_disk(folder, num_shards=dict.fromkeys(tables, 1))
    return folder


def picture(mode="RGB"):
    return Image.new(mode, (8, 8))


def columns(**others):
    return {"image": [picture(), picture()], "label": [0, 1]} | others


BOTH = {"train": columns(), "test": columns()}


@pytest.mark.parametrize(("test", "dog"), [("test", "train"), ("val", "hot-test")])
@pytest.mark.parametrize("augment", [True, False])
def test_images_come_with_their_class_whatever_folders_are_called(tmp_path, test, dog, augment):
    folder = write_images(tmp_path / "[1]*", test, dog=dog)
    data = load("folder", data_dir=folder, batch_size=5, image_size=16, augment=augment)
    assert (data.classes, data.shape, data.kind) == (2, (3, 16, 16), "images")
    assert [len(batches.examples) for batches in (data.train, data.test)] == [12, 4]
    colours = torch.tensor([[255, 0, 0], [0, 0, 255]]).view(2, 3, 1, 1)
    expected = NORMALISE(colours, make_generator(0, "augmentation"))
    for inputs, targets in [*data.train, *data.test]:
        # The centre is in every crop, whose padding is black.
        assert torch.equal(inputs[..., 7:9, 7:9], expected[targets].expand(-1, 3, 2, 2))


def test_the_test_shows_the_central_square(tmp_path):
    folder = write_images(tmp_path)
    pixels = np.random.RandomState(0).randint(0, 256, (32, 48, 3)).astype(np.uint8)
    for file in (folder / "test").glob("*/*.png"):
        Image.fromarray(pixels).save(file)
    data = load("folder", data_dir=folder, batch_size=1, image_size=32)
    inputs, _ = next(iter(data.test))
    centre = torch.from_numpy(pixels[:, 8:40]).permute(2, 0, 1)[None]
    assert torch.equal(inputs, NORMALISE(centre, make_generator(0, "augmentation")))


def test_workers_serve_the_same_augmented_bits(tmp_path):
    folder = write_images(tmp_path)
    served = [
        list(load("folder", data_dir=folder, batch_size=5, image_size=16, workers=n).train)
        for n in (0, 3)
    ]
    plain = load("folder", data_dir=folder, batch_size=5, image_size=16, augment=False).train
    assert not different(*(chain(*batches) for batches in served))
    assert not torch.equal(served[0][0][0], next(iter(plain))[0])


@pytest.mark.parametrize("change", [*FORMATS, NOT_DECODED])
def test_a_saved_data_set_is_read_in_any_format(tmp_path, change):
    grey = {"image": [picture("L"), picture("RGBA")], "label": [1, 0]}
    folder = save(tmp_path, change, train=grey | {"fine": [4, 2]}, test=grey | {"fine": [4, 0]})
    data = load("folder", data_dir=folder, batch_size=2, image_size=8)
    assert (data.classes, next(iter(data.test))[0].shape) == (2, (2, 3, 8, 8))
    fine = load("folder", data_dir=folder, batch_size=2, image_size=8, label="fine")
    assert (fine.classes, next(iter(fine.test))[1].tolist()) == (5, [4, 0])


@pytest.mark.parametrize(
    ("splits", "options", "said"),
    [
        ({"train": columns()}, {}, "splits train; wanted train, and test or val"),
        ({"test": columns()}, {}, "has the splits test; wanted"),
        ({"train": {"label": [0]}, "test": {"label": [0]}}, {}, "'train' .*'image' .*missing"),
        (BOTH | {"test": columns(image=[], label=[])}, {}, "split 'test' has no images"),
        (BOTH, {"image": "label"}, "no column 'label' of type Image"),
        (
            BOTH,
            {"label": "fine"},
            "no column 'fine' .*missing.* of two or more classes",
        ),
        (BOTH, {"image_size": 0}, "image_size is 0"),
        (BOTH | {"train": columns(label=["a", "b"])}, {}, "no column 'label' .*string"),
        (BOTH | {"test": columns(label=[0, None])}, {}, "targets range from -1 to 0"),
        (None, {"data_dir": "one"}, "has the splits none"),
        (None, {"data_dir": "empty"}, "cannot read images in .*empty"),
    ],
)
def test_splits_and_columns_that_are_missing_are_named(
    tmp_path, monkeypatch, splits, options, said
):
    monkeypatch.chdir(tmp_path)
    if splits is None:
        datasets.Dataset.from_dict(columns()).save_to_disk("one")
        Path("empty").mkdir()
    else:
        options = {"data_dir": save(tmp_path, **splits)} | options
    with pytest.raises((DataError, OptionError), match=said):
        load("folder", batch_size=2, **options)


def test_a_folder_that_would_be_passed_over_is_refused(tmp_path):
    folder = write_images(tmp_path, dog="__background__")
    with pytest.raises(DataError, match=r"train/__background__, .*test/__background__; rename"):
        load("folder", data_dir=folder, batch_size=4)


def test_an_unreadable_or_missing_image_is_told_when_its_batch_is_served(tmp_path):
    folder = write_images(tmp_path)
    (folder / "test" / "dog" / "1.png").write_bytes(b"no image")
    served = iter(load("folder", data_dir=folder, batch_size=1, image_size=16).test)
    for _ in range(3):
        next(served)
    with pytest.raises(DataError, match=r"image 3 \(test, .*dog/1.png\) cannot be decoded"):
        next(served)
    folder = save(tmp_path, train=columns(), test=columns(image=[None, picture()]))
    with pytest.raises(DataError, match="image 0 is missing"):
        next(iter(load("folder", data_dir=folder, batch_size=1, image_size=16).test))


@pytest.mark.parametrize("kind", [np.uint16, np.float32])
def test_images_of_more_than_eight_bits_are_refused(tmp_path, kind):
    folder = write_images(tmp_path)
    for file in (folder / "test").glob("*/*.png"):
        Image.fromarray(np.ones((8, 8), dtype=kind)).save(file, format="TIFF")
    data = load("folder", data_dir=folder, batch_size=2, image_size=8)
    with pytest.raises(DataError, match="more than 8 bits"):
        next(iter(data.test))


@pytest.mark.parametrize(("package", "found"), [("datasets", object()), ("PIL", None)])
def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch, package, found):
    monkeypatch.setitem(sys.modules, package, found)
    with pytest.raises(OptionError, match=rf"needs the package {package}, .*hocket\[hf\]"):
        load("folder", data_dir=tmp_path, batch_size=4)


def test_images_are_held_out(tmp_path):
    folder = write_images(tmp_path)
    options = {"data_dir": folder, "batch_size": 2, "image_size": 8}
    train = load("folder", **options).train.examples
    divided = load("folder", hold_out=0.5, **options)
    rest, held = divided.train.examples, divided.test.examples
    assert [len(rest), len(held)] == [6, 6]
    assert sorted([*rest.targets, *held.targets]) == sorted(train.targets)
    assert (rest.transform, held.transform) == (train.transform, NORMALISE)
    for part in (rest, held):
        inputs, targets = part.take(torch.tensor([0, 5]), make_generator(0, "augmentation"))
        # Cats are red.
        assert [bool(red) for red in inputs[:, 0, 4, 4] > 0] == [not dog for dog in targets]

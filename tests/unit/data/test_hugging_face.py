"""Rows of Hugging Face data sets become tensors, and unsuitable rows are refused."""

import importlib.util
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from hocket.data import load
from hocket.data.hugging_face import measure_normalisation, read_rows
from hocket.data.randomness import make_generator
from hocket.errors import DataError, OptionError

needs_datasets = pytest.mark.skipif(
    importlib.util.find_spec("datasets") is None, reason="the package datasets is not installed"
)
PIXELS = np.random.RandomState(0).randint(0, 256, (12, 6, 5, 3)).astype(np.uint8)


def rows(mode="RGB", size=(5, 6)):
    """Return rows of twelve images in three classes."""
    images = [Image.fromarray(pixels).convert(mode).resize(size) for pixels in PIXELS]
    return [{"image": image, "label": n % 3} for n, image in enumerate(images)]


def test_colour_images_keep_their_pixels():
    inputs, targets = read_rows(rows(), "image", "label")
    assert torch.equal(inputs, torch.from_numpy(PIXELS).permute(0, 3, 1, 2))
    assert targets.tolist() == [n % 3 for n in range(12)]


@pytest.mark.parametrize(
    ("mode", "channels"), [("L", 1), ("1", 1), ("I", 1), ("RGBA", 3), ("P", 3)]
)
def test_other_modes_become_grey_or_colour(mode, channels):
    inputs, _ = read_rows(rows(mode), "image", "label")
    assert inputs.shape == (12, channels, 6, 5)
    assert inputs.dtype == torch.uint8


def test_grey_images_among_colours_are_colours():
    mixed = rows("L")[:1] + rows()[1:]
    inputs, _ = read_rows(mixed, "image", "label")
    assert inputs.shape == (12, 3, 6, 5)
    assert torch.equal(inputs[0], read_rows(rows("L"), "image", "label")[0][0].expand(3, 6, 5))
    assert torch.equal(inputs[1:], read_rows(rows(), "image", "label")[0][1:])


def test_images_of_floating_point_numbers_are_refused():
    images = [{"image": image["image"].convert("F"), "label": 0} for image in rows()]
    with pytest.raises(DataError, match=r"cannot be used: its pixels are floating point"):
        read_rows(images, "image", "label")


def test_images_can_be_resized():
    mixed = rows()[:2] + rows(size=(9, 4))[2:]
    assert read_rows(mixed, "image", "label", image_size=8)[0].shape == (12, 3, 8, 8)
    with pytest.raises(
        DataError, match=r"row 2 has the shape \(3, 4, 9\), row 0 \(3, 6, 5\); pass"
    ):
        read_rows(mixed, "image", "label")


def test_lists_of_numbers_become_vectors():
    inputs, _ = read_rows([{"x": [1, 2.5], "y": 0}, {"x": [3, 4], "y": 1}], "x", "y")
    assert inputs.tolist() == [[1, 2.5], [3, 4]]
    assert inputs.dtype == torch.float32


def test_normalisation_is_measured():
    images = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)
    got = measure_normalisation(images)(images, make_generator(0, "augmentation"))
    torch.testing.assert_close(got.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    deviation = got.std((0, 2, 3), correction=0)
    torch.testing.assert_close(deviation, torch.ones(3), atol=1e-5, rtol=0)


def test_a_channel_of_one_colour_stays_finite():
    assert measure_normalisation(torch.zeros(2, 1, 3, 3, dtype=torch.uint8)).std == (1.0,)


@pytest.mark.parametrize(
    ("unsuitable", "expected"),
    [
        ([], r"found 0 rows, wanted at least 1; choose another split"),
        (
            [{"img": 0, "label": 0}],
            r"no column image; there are img, label: name them with the",
        ),
        ([{"text": 0}], r"no column image and label; there are text: name them"),
        ([{"image": [1], "label": "cat"}], r"row 0: 'label' is 'cat', wanted a class number"),
        ([{"image": "hello", "label": 0}], r"an input is 'hello', wanted an image or a list"),
        ([{"image": 3.0, "label": 0}], r"'image' has the shape \(\), wanted images or vectors"),
        (
            [{"image": [1], "label": 0}, {"image": [1, 2], "label": 0}],
            r"row 1 has the shape \(2,",
        ),
    ],
)
def test_rows_of_something_else_are_refused(unsuitable, expected):
    with pytest.raises(DataError, match=expected):
        read_rows(unsuitable, "image", "label")


def test_the_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(OptionError, match=r"needs the package datasets, .* 'hocket\[hf\]'"):
        load("hf", batch_size=4, dataset="someone/something")


def test_missing_pillow_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(OptionError, match=r"'hf' needs the package PIL, .* 'hocket\[data\]'"):
        read_rows([], "image", "label")


@pytest.fixture
def local(tmp_path, monkeypatch):
    """Return a function that writes a data set of 12 training and 6 test rows."""
    datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
    import pyarrow as pa
    import pyarrow.parquet as pq

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    features = {"info": {"features": {"image": {"_type": "Image"}}}}
    (tmp_path / "set").mkdir()

    def write(test_size=(5, 6)):
        for split, split_rows in (("train", rows()), ("test", rows(size=test_size)[:6])):
            columns = {
                "image": [{"bytes": png(row["image"]), "path": ""} for row in split_rows],
                "vector": [[row["label"], 1.0] for row in split_rows],
                "label": [row["label"] for row in split_rows],
            }
            table = pa.table(columns).replace_schema_metadata(
                {"huggingface": json.dumps(features)}
            )
            pq.write_table(table, tmp_path / "set" / f"{split}-00000-of-00001.parquet")
        return str(tmp_path / "set")

    return write


def png(image):
    """Encode an image as PNG."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


@needs_datasets
@pytest.mark.parametrize("augment", [False, True])
def test_a_local_data_set_of_images_is_loaded(local, augment):
    data = load("hf", batch_size=5, dataset=local(), augment=augment)
    assert (data.name, data.classes, data.shape, data.kind) == ("hf", 3, (3, 6, 5), "images")
    assert [len(targets) for _, targets in data.train] == [5, 5, 2]
    assert next(iter(data.test))[1].tolist() == [0, 1, 2, 0, 1]
    assert next(iter(data.train))[0].dtype == torch.float32


@needs_datasets
def test_a_local_data_set_of_vectors_is_loaded(local):
    folder = local()
    data = load("hf", batch_size=4, dataset=folder, image="vector")
    assert (data.shape, data.kind) == ((2,), "vectors")
    with pytest.raises(
        OptionError, match=r"augment is for images, column 'vector' has vectors"
    ):
        load("hf", batch_size=4, dataset=folder, image="vector", augment=True)


@needs_datasets
def test_training_and_test_must_have_one_shape(local):
    with pytest.raises(
        DataError, match=r"training inputs are \(3, 6, 5\), test inputs \(3, 9, 9\)"
    ):
        load("hf", batch_size=4, dataset=local(test_size=(9, 9)))


def test_grey_images_of_one_split_are_colours_if_those_of_the_other_are(monkeypatch):
    def load_dataset(dataset, config, *, split):
        return rows("L") if split == "train" else rows()

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    data = load("hf", batch_size=4, dataset="someone/something")
    assert data.shape == (3, 6, 5)
    assert next(iter(data.test))[0].shape == next(iter(data.train))[0].shape == (4, 3, 6, 5)


@needs_datasets
def test_an_unknown_split_is_refused(local):
    with pytest.raises(DataError, match=r"cannot load .*, splits 'train' and 'dev': .*; check"):
        load("hf", batch_size=4, dataset=local(), test_split="dev")


@needs_datasets
def test_a_damaged_file_is_refused(local):
    folder = local()
    file = Path(folder, "train-00000-of-00001.parquet")
    content = bytearray(file.read_bytes())
    content[4:200] = bytes(196)
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"cannot load .*, splits 'train' and 'test': "):
        load("hf", batch_size=4, dataset=folder)

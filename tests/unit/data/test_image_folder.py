"""Image folders: classes by name, images decoded when served, errors name the file."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image

from hocket.data import load
from hocket.data.image_folder import NORMALISE, centre_box, random_box, to_eight_bits
from hocket.data.randomness import make_generator
from hocket.errors import DataError, OptionError


def write_images(root, test="test", size=(40, 32)):
    """Write images of two classes: red cats and blue dogs."""
    for part, number in (("train", 6), (test, 2)):
        for name, colour in (("dog", (0, 0, 255)), ("cat", (255, 0, 0))):
            folder = root / part / name
            folder.mkdir(parents=True)
            for n in range(number):
                Image.new("RGB", size, colour).save(folder / f"{n}.png")
            (folder / "notes.txt").write_text("no image")
    return root


@pytest.mark.parametrize("test", ["test", "val"])
@pytest.mark.parametrize("augment", [True, False])
def test_images_come_with_their_class(tmp_path, test, augment):
    write_images(tmp_path, test)
    data = load("folder", data_dir=tmp_path, batch_size=5, image_size=16, augment=augment)
    assert (data.classes, data.shape, data.kind) == (2, (3, 16, 16), "images")
    assert [len(batches.examples) for batches in (data.train, data.test)] == [12, 4]
    colours = torch.tensor([[255, 0, 0], [0, 0, 255]]).view(2, 3, 1, 1)
    expected = NORMALISE(colours, make_generator(0, "augmentation"))
    for inputs, targets in [*data.train, *data.test]:
        assert torch.equal(inputs, expected[targets].expand(-1, 3, 16, 16))


def test_the_test_shows_the_centre(tmp_path):
    write_images(tmp_path)
    pixels = np.random.RandomState(0).randint(0, 256, (32, 48, 3)).astype(np.uint8)
    for file in (tmp_path / "test").glob("*/*.png"):
        Image.fromarray(pixels).save(file)
    data = load("folder", data_dir=tmp_path, batch_size=1, image_size=28)
    inputs, _ = next(iter(data.test))
    # 7/8 of 32 is 28: no resampling.
    centre = torch.from_numpy(pixels[2:30, 10:38]).permute(2, 0, 1)[None]
    assert torch.equal(inputs, NORMALISE(centre, make_generator(0, "augmentation")))


def test_training_images_are_cropped_and_flipped_independently(tmp_path):
    write_images(tmp_path)
    ramp = np.tile(np.arange(64, dtype=np.uint8)[None, :, None], (64, 1, 3))
    for file in (tmp_path / "train").glob("*/*.png"):
        Image.fromarray(ramp).save(file)
    data = load("folder", data_dir=tmp_path, batch_size=12, image_size=16)
    inputs, _ = next(iter(data.train))
    assert len({tuple(row.tolist()) for row in inputs[:, 0, 0]}) == 12
    rising = inputs[:, 0, 0, -1] > inputs[:, 0, 0, 0]
    assert 0 < int(rising.sum()) < 12


@pytest.mark.parametrize(("width", "height"), [(500, 375), (100, 100), (30, 200)])
def test_random_boxes_lie_inside_and_keep_their_proportions(width, height):
    rng = make_generator(0, "augmentation")
    shares = []
    for _ in range(300):
        left, top, right, bottom = random_box(width, height, rng)
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
        assert 3 / 4 - 1e-9 <= (right - left) / (bottom - top) <= 4 / 3 + 1e-9
        shares.append((right - left) * (bottom - top) / (width * height))
    assert 0.08 <= min(shares) < 0.12
    assert max(shares) > 0.14


def test_a_box_that_never_fits_becomes_the_central_square():
    box = random_box(1000, 10, make_generator(0, "augmentation"))
    assert box == centre_box(1000, 10, None, fraction=1.0) == (495, 0, 505, 10)


def test_missing_parts_are_named(tmp_path):
    with pytest.raises(
        DataError, match=r"has no folder train; put the images into .*train/<cla"
    ):
        load("folder", data_dir=tmp_path, batch_size=4)
    write_images(tmp_path, test="other")
    with pytest.raises(DataError, match=r"has no folder test or val; put the images into"):
        load("folder", data_dir=tmp_path, batch_size=4)


def test_a_part_without_classes_is_refused(tmp_path):
    (tmp_path / "train").mkdir()
    with pytest.raises(DataError, match=r"train has no sub-folders; make one for each class"):
        load("folder", data_dir=tmp_path, batch_size=4)


def test_all_empty_classes_are_named(tmp_path):
    write_images(tmp_path)
    for name in ("emu", "fox"):
        (tmp_path / "train" / name).mkdir()
    expected = (
        r"(?s)train has empty classes:.*class 'emu' has 0 images \(.bmp.*class 'fox' has 0"
    )
    with pytest.raises(DataError, match=expected):
        load("folder", data_dir=tmp_path, batch_size=4)


def test_classes_of_training_and_test_must_agree(tmp_path):
    write_images(tmp_path)
    (tmp_path / "test" / "cat").rename(tmp_path / "test" / "cow")
    with pytest.raises(
        DataError, match=r"training has 2 classes, the test 2; .* cat, cow; give"
    ):
        load("folder", data_dir=tmp_path, batch_size=4)


def cut_short(png):
    return png[:60]


def of_a_short_header(png):
    """Pillow raises a ValueError."""
    return png[:11] + b"\x05" + png[12:21] + b"\0\0\0\0" + png[33:]


def of_a_broken_chunk(png):
    """Pillow raises a SyntaxError."""
    return png[:33] + b"\0\0\0\1\xff\xff\xff\xff" + png[41:]


@pytest.mark.parametrize(
    "damage",
    [lambda png: b"", lambda png: b"no image", cut_short, of_a_short_header, of_a_broken_chunk],
)
def test_an_unreadable_file_is_named_when_its_batch_is_served(tmp_path, damage):
    write_images(tmp_path)
    file = tmp_path / "test" / "dog" / "1.png"
    file.write_bytes(damage(file.read_bytes()))
    batches = load("folder", data_dir=tmp_path, batch_size=1, image_size=16).test
    served = iter(batches)
    for _ in range(3):
        next(served)
    with pytest.raises(DataError, match=r"dog.1.png cannot be decoded: .*; replace or remove"):
        next(served)


def test_images_that_are_left_out_are_named(tmp_path):
    write_images(tmp_path)
    train = tmp_path / "train"
    picture = Image.new("RGB", (8, 8))
    picture.save(train / "cat" / "a.tif")
    picture.save(train / "dog" / "b.TIF")
    picture.save(train / "loose.png")
    (train / "cat" / "more").mkdir()
    found = r"train: these are left out: 1 x .png outside of .*, 2 x .tif, 1 x folder in a cl"
    with pytest.warns(UserWarning, match=found):
        data = load("folder", data_dir=tmp_path, batch_size=4)
    assert len(data.train.examples) == 12


def test_missing_pillow_is_named_with_its_extra(tmp_path, monkeypatch):
    write_images(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    expected = r"'folder' needs the package PIL, .* 'hocket\[data\]'"
    with pytest.raises(OptionError, match=expected):
        load("folder", data_dir=tmp_path, batch_size=4)


def test_image_size_must_be_positive(tmp_path):
    with pytest.raises(OptionError, match=r"image_size is 0; give 1 or more pixels"):
        load("folder", data_dir=tmp_path, batch_size=4, image_size=0)


def test_images_of_sixteen_bits_keep_their_greys():
    ramp = (np.arange(64, dtype=np.uint16) * 1000).reshape(8, 8)
    read = np.asarray(to_eight_bits(Image.fromarray(ramp)).convert("RGB"))
    assert (read[..., 0] == np.round(ramp / 65535 * 255)).all()


def test_images_of_floating_point_numbers_are_refused(tmp_path):
    write_images(tmp_path)
    for file in (tmp_path / "test").glob("*/*.png"):
        Image.fromarray(np.ones((8, 8), dtype=np.float32)).save(file, format="TIFF")
    data = load("folder", data_dir=tmp_path, batch_size=2, image_size=8)
    with pytest.raises(DataError, match="cannot be decoded: its pixels are floating point"):
        next(iter(data.test))

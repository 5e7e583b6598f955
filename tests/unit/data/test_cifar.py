"""All layouts of CIFAR yield the same images, and damaged files are refused."""

import io
import os
import pickle
import struct
import sys
import tarfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from hocket.data import load
from hocket.data.augment import Chain, Normalise
from hocket.data.cifar import make_loader, read_release
from hocket.data.cifar_release import CIFAR10, CIFAR100
from hocket.errors import DataError, OptionError

FILES = {"data_batch_1": 0, "data_batch_2": 4, "test_batch": 8}
LABELS = np.arange(12) % 2
PIXELS = np.random.RandomState(0).randint(0, 256, (12, 3072)).astype(np.uint8)


def original_pickle(rows, labels, key=b"labels"):
    """Return a pickle as the authors' Python 2 wrote it; str is SHORT_BINSTRING there."""

    def text(value):
        return b"U" + bytes([len(value)]) + value

    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b")
    array += (
        b"\x87R(K\x01" + b"".join(b"J" + struct.pack("<i", n) for n in rows.shape) + b"\x86"
    )
    array += dtype + b"\x89T" + struct.pack("<i", rows.nbytes) + rows.tobytes() + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(key) + numbers + b"u."


def pickled(dump=original_pickle, **others):
    """Return the content of each batch file, four images."""
    files = {n: dump(PIXELS[first:][:4], LABELS[first:][:4]) for n, first in FILES.items()}
    return files | others


def dumped(rows, labels):
    """Return a pickle as this NumPy writes it."""
    numbers = labels if isinstance(labels, list) else labels.tolist()
    return pickle.dumps({b"data": rows, b"labels": numbers}, protocol=4)


# CIFAR-10 as if published with 8 and 4 images in 2 classes.
RELEASE = replace(
    CIFAR10,
    classes=2,
    train_files=("data_batch_1", "data_batch_2"),
    train_images=8,
    test_images=4,
)


def write_folder(root, contents):
    folder = root / CIFAR10.folder
    folder.mkdir()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return folder


def write_archive(root, contents):
    path = root / CIFAR10.archive
    with tarfile.open(path, "w:gz") as archive:
        for name, content in {"readme.html": b"hello", **contents}.items():
            member = tarfile.TarInfo(f"{CIFAR10.folder}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def encoded(pixels, suffix="WEBP"):
    file = io.BytesIO()
    image = Image.fromarray(pixels.reshape(3, -1).T.reshape(32, -1, 3))
    image.save(file, suffix, lossless=True)
    return file.getvalue()


def write_table(columns, file):
    pa = pytest.importorskip("pyarrow", reason="the parquet layout needs pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), file)


def write_parquet(root, *, image="img", label="label", shards=(0, 4, 8, 12), suffix="WEBP"):
    root.mkdir(parents=True, exist_ok=True)
    names = ["train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"]
    for name, first, last in zip(names, shards[:-1], shards[1:], strict=True):
        images = [{"bytes": encoded(PIXELS[n], suffix), "path": ""} for n in range(first, last)]
        write_table({image: images, label: LABELS[first:last]}, root / f"{name}.parquet")
    return root


def load_small(data_dir, release=RELEASE, **options):
    return make_loader(release)(data_dir=data_dir, batch_size=4, seed=0, **options)


def write_pickles(root, **others):
    return write_folder(root, pickled(**others))


FINE = replace(RELEASE, pickled_label=b"fine_labels", label_columns=CIFAR100.label_columns)
fine_pickle = partial(original_pickle, key=CIFAR100.pickled_label)
LAYOUTS = {
    "pickles": (RELEASE, write_pickles),
    "of this NumPy": (RELEASE, lambda root: write_folder(root, pickled(dumped))),
    "with fine labels": (FINE, lambda root: write_folder(root, pickled(fine_pickle))),
    "archive": (RELEASE, lambda root: write_archive(root, pickled())),
    "parquet": (RELEASE, write_parquet),
    "parquet of PNG": (RELEASE, partial(write_parquet, image="image", suffix="PNG")),
    "parquet with fine labels": (FINE, partial(write_parquet, label="fine_label")),
}


@pytest.mark.parametrize("below", ["", "cifar10"])
@pytest.mark.parametrize(("release", "write"), LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_yields_the_same_images(tmp_path, release, write, below):
    """The folder of pickles or the archive may be given as well."""
    root = tmp_path / below
    root.mkdir(exist_ok=True)
    for place in (tmp_path, write(root)):
        inputs, targets = map(torch.cat, zip(*read_release(release, place), strict=True))
        assert torch.equal(inputs, torch.from_numpy(PIXELS).view(12, 3, 32, 32))
        assert inputs.dtype == torch.uint8
        assert targets.tolist() == LABELS.tolist()


@pytest.mark.parametrize("write", [write_parquet, write_pickles])
@pytest.mark.parametrize("subset", [1, 3, 6])
def test_subset_takes_the_first_training_images(tmp_path, write, subset):
    write(tmp_path)
    train, test = read_release(RELEASE, tmp_path, subset)
    assert torch.equal(train.inputs.flatten(1), torch.from_numpy(PIXELS[:subset]))
    assert train.targets.tolist() == LABELS[:subset].tolist()
    assert len(test.inputs) == 4


def test_data_are_augmented_for_training_and_normalised(tmp_path):
    write_pickles(tmp_path)
    data = load_small(tmp_path)
    assert (data.name, data.shape, data.classes) == ("cifar10", (3, 32, 32), 2)
    assert isinstance(data.train.examples.transform, Chain)
    normalise = Normalise((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
    assert data.test.examples.transform == normalise
    assert load_small(tmp_path, augment=False).train.examples.transform == normalise
    adl = load_small(tmp_path, normalisation="adl").test.examples.transform
    assert adl.std == (0.2470, 0.2435, 0.2616)


def test_a_pickle_must_not_name_anything_but_arrays(tmp_path):
    """A path that the file creates, for example."""
    harm = b"cpathlib\nPath\n" + f"(V{tmp_path / 'done'}\n".encode() + b"tR."
    write_pickles(tmp_path, data_batch_1=harm)
    with pytest.raises(DataError, match=r"asks for pathlib.Path, which no CIFAR file needs"):
        read_release(RELEASE, tmp_path)


def batch(content):
    """Return what writes pickles of which the first batch holds something else."""
    packed = content if isinstance(content, bytes) else pickle.dumps(content, protocol=4)
    return lambda root: write_pickles(root, data_batch_1=packed)


def cut(write, pattern, size):
    """Return what writes a layout of which a file is cut, or removed."""

    def write_cut(root):
        write(root)
        for file in root.rglob(pattern):
            content = file.read_bytes()
            file.unlink()
            if size:
                file.write_bytes(content[:size])

    return write_cut


def rows(image, label=1):
    """Return what writes parquet files of which the first holds other rows."""

    def write(root):
        write_parquet(root)
        columns = {"img": [{"bytes": image}] * 4, "label": [label] * 4}
        write_table(columns, root / "train-00000-of-00002.parquet")

    return write


ARCHIVE = partial(write_archive, contents=pickled())
NO_BATCH = "is no CIFAR batch: wanted 'data', uint8 of N rows"
UNREADABLE = "data_batch_1 is no readable pickle"
REFUSED = {
    "nothing": (lambda root: None, "no cifar10 in .*: found nothing, wanted the folder cif"),
    "notes": (lambda root: (root / "notes.txt").touch(), "no cifar10 in .*: found notes.txt"),
    "beginning of an archive": (cut(ARCHIVE, "*.gz", 40), "is no readable .tar.gz"),
    "part of an archive": (cut(ARCHIVE, "*.gz", -4000), "is no readable .tar.gz"),
    "missing batches": (cut(write_pickles, "*_2", 0), "lacks data_batch_2; wanted data_b"),
    "empty": (batch(b""), UNREADABLE),
    "truncated": (batch(b"\x80\x02}(U\x04da"), UNREADABLE),
    "large numbers": (batch(dumped(PIXELS[:4].astype(np.int16), [0] * 4)), UNREADABLE),
    "list": (batch([1, 2]), NO_BATCH),
    "no labels": (batch({b"data": PIXELS[:4]}), NO_BATCH),
    "text": (batch(dumped("text", [0] * 4)), NO_BATCH),
    "short rows": (batch(dumped(PIXELS[:4, :9], [0] * 4)), NO_BATCH),
    "too few labels": (batch(dumped(PIXELS[:4], [0] * 3)), NO_BATCH),
    "names as labels": (batch(dumped(PIXELS[:4], ["cat"] * 4)), NO_BATCH),
    "too few images": (batch(dumped(PIXELS[:3], [0] * 3)), "holds 7 training and 4 test"),
    "no training": (cut(write_parquet, "train-*", 0), r"lacks train-\*.parquet \(found t"),
    "no test": (cut(write_parquet, "test-*", 0), r"lacks test-\*.parquet \(found t"),
    "too few rows": (partial(write_parquet, shards=(0, 4, 7, 11)), "7 rows in .*, wanted 8"),
    "start of a file": (cut(write_parquet, "train-00001*", 100), "parquet .* cannot be read"),
    "part of a file": (cut(write_parquet, "train-00001*", -100), "parquet .* cannot be read"),
    "no image": (partial(write_parquet, image="pixels"), "columns pixels, .*, wanted img or"),
    "no label": (partial(write_parquet, label="name"), "has the columns img, .*, wanted label"),
    "no picture": (rows(b"no image"), "row 0 cannot be decoded"),
    "half a picture": (rows(encoded(PIXELS[0][:1536])), "row 0 is 32 x 16, wanted 32 x 32"),
    "label of nothing": (rows(encoded(PIXELS[0]), None), "row 0 has the label None"),
}


@pytest.mark.parametrize(("write", "said"), REFUSED.values(), ids=REFUSED)
def test_files_that_are_not_those_of_the_release_are_refused(tmp_path, write, said):
    write(tmp_path)
    with pytest.raises(DataError, match=said):
        read_release(RELEASE, tmp_path)


@pytest.mark.parametrize("package", ["pyarrow", "PIL"])
def test_parquet_without_its_packages_names_what_to_install(tmp_path, monkeypatch, package):
    write_parquet(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(OptionError, match=rf"needs the package {package}, .*hocket\[data\]"):
        read_release(RELEASE, tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"release": replace(RELEASE, classes=3)}, "are of 2 classes, wanted 3"),
        ({"release": replace(RELEASE, classes=1)}, "range from 0 to 1, but 1 classes want 0"),
        ({"normalisation": "x"}, "no normalisation 'x'; choose one of: fdg, adl"),
        ({"subset": 0}, "subset is 0; give 1 to 8"),
        ({"subset": 9}, "subset is 9; give 1 to 8"),
    ],
)
def test_choices_that_do_not_fit_the_images_are_refused(tmp_path, options, said):
    write_pickles(tmp_path)
    with pytest.raises((DataError, OptionError), match=said):
        load_small(tmp_path, **options)


ROOT = Path(__file__).resolve().parents[3]
DATA_DIR = Path(os.environ.get("HOCKET_DATA", ROOT.parent / "shared" / "data"))
real = pytest.mark.skipif(
    not (DATA_DIR / "cifar10").is_dir(),
    reason="no folder cifar10 in HOCKET_DATA; set it to a folder with the parquet files",
)


@real
def test_a_part_of_cifar10_has_the_known_labels_and_normalisation():
    data = load("cifar10", data_dir=DATA_DIR, batch_size=1000, subset=1000, augment=False)
    ((inputs, targets),) = list(data.train)
    assert inputs.shape == (1000, 3, 32, 32)
    # Frog, truck, truck, deer, automobile: the start of data_batch_1.
    assert data.train.examples.targets[:5].tolist() == [6, 9, 9, 4, 1]
    assert targets.bincount(minlength=10).min() > 80
    assert inputs.mean().abs() < 0.1
    labels = data.test.examples.targets
    assert labels.bincount().tolist() == [1000] * 10


@real
@pytest.mark.longer
def test_all_of_cifar10_has_the_published_statistics():
    train, test = read_release(CIFAR10, DATA_DIR)
    assert train.targets.bincount().tolist() == [5000] * 10
    assert test.targets.bincount().tolist() == [1000] * 10
    pixels = train.inputs.float() / 255
    expected = torch.tensor(CIFAR10.normalisations["adl"])
    torch.testing.assert_close(pixels.mean((0, 2, 3)), expected[0], rtol=0, atol=1e-4)
    torch.testing.assert_close(pixels.std((0, 2, 3)), expected[1], rtol=0, atol=1e-4)

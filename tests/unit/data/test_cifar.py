"""All layouts of CIFAR yield the same images, and damaged files are refused."""

import io
import pickle
import struct
import sys
import tarfile
from dataclasses import replace

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


def pickled(names=FILES):
    """Return the content of each batch file, four images."""
    return {
        name: original_pickle(PIXELS[FILES[name] :][:4], LABELS[FILES[name] :][:4])
        for name in names
    }


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
    folder.mkdir(parents=True)
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


def write_parquet(root, *, image="img", label="label", shards=(0, 4, 8, 12), suffix="WEBP"):
    pa = pytest.importorskip("pyarrow", reason="the parquet layout needs pyarrow")
    import pyarrow.parquet as pq

    root.mkdir(parents=True, exist_ok=True)
    names = ["train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"]
    for name, first, last in zip(names, shards[:-1], shards[1:], strict=True):
        images = [{"bytes": encoded(PIXELS[n], suffix), "path": ""} for n in range(first, last)]
        table = pa.table({image: images, label: LABELS[first:last]})
        pq.write_table(table, root / f"{name}.parquet")
    return root


def load_small(data_dir, release=RELEASE, **options):
    return make_loader(release)(data_dir=data_dir, batch_size=4, **options)


def check_all_images(parts):
    inputs = torch.cat([part.inputs for part in parts])
    assert torch.equal(inputs, torch.from_numpy(PIXELS).view(12, 3, 32, 32))
    assert inputs.dtype == torch.uint8
    assert torch.cat([part.targets for part in parts]).tolist() == LABELS.tolist()


@pytest.mark.parametrize("below", ["", "cifar10"])
def test_folder_of_pickles(tmp_path, below):
    write_folder(tmp_path / below, pickled())
    check_all_images(read_release(RELEASE, tmp_path))


def test_the_folder_itself_may_be_given(tmp_path):
    check_all_images(read_release(RELEASE, write_folder(tmp_path, pickled())))


def test_pickles_of_this_numpy_are_read_too(tmp_path):
    contents = {
        name: pickle.dumps(
            {b"data": PIXELS[n : n + 4], b"labels": LABELS[n : n + 4].tolist()}, protocol=4
        )
        for name, n in FILES.items()
    }
    write_folder(tmp_path, contents)
    check_all_images(read_release(RELEASE, tmp_path))


def test_fine_labels_of_pickles_are_found(tmp_path):
    contents = {
        name: original_pickle(PIXELS[n:][:4], LABELS[n:][:4], key=CIFAR100.pickled_label)
        for name, n in FILES.items()
    }
    write_folder(tmp_path, contents)
    check_all_images(read_release(replace(RELEASE, pickled_label=b"fine_labels"), tmp_path))


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_both_releases_are_searched_under_their_names(tmp_path, name):
    with pytest.raises(
        DataError, match=rf"no {name} in .*: found nothing, wanted the folder cifa"
    ):
        load(name, data_dir=tmp_path, batch_size=4)


def test_archive(tmp_path):
    path = write_archive(tmp_path, pickled())
    check_all_images(read_release(RELEASE, tmp_path))
    check_all_images(read_release(RELEASE, path))
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("below", ["", "cifar10"])
@pytest.mark.parametrize(("image", "suffix"), [("img", "WEBP"), ("image", "PNG")])
def test_parquet(tmp_path, below, image, suffix):
    write_parquet(tmp_path / below, image=image, suffix=suffix)
    check_all_images(read_release(RELEASE, tmp_path))


def test_fine_labels_of_cifar100_are_preferred(tmp_path):
    write_parquet(tmp_path, label="fine_label")
    check_all_images(
        read_release(replace(RELEASE, label_columns=CIFAR100.label_columns), tmp_path)
    )


@pytest.mark.parametrize("write", [write_parquet, lambda root: write_folder(root, pickled())])
@pytest.mark.parametrize("subset", [1, 3, 6])
def test_subset_takes_the_first_training_images(tmp_path, write, subset):
    write(tmp_path)
    train, test = read_release(RELEASE, tmp_path, subset)
    assert torch.equal(train.inputs.flatten(1), torch.from_numpy(PIXELS[:subset]))
    assert train.targets.tolist() == LABELS[:subset].tolist()
    assert len(test.inputs) == 4


def test_data_are_augmented_for_training_and_normalised(tmp_path):
    write_folder(tmp_path, pickled())
    data = load_small(tmp_path)
    assert (data.name, data.shape, data.classes) == ("cifar10", (3, 32, 32), 2)
    assert isinstance(data.train.examples.transform, Chain)
    normalise = Normalise((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
    assert data.test.examples.transform == normalise
    assert load_small(tmp_path, augment=False).train.examples.transform == normalise
    adl = load_small(tmp_path, normalisation="adl").test.examples.transform
    assert adl.std == (0.2470, 0.2435, 0.2616)


@pytest.mark.parametrize("length", [40, -4000])
def test_an_unreadable_archive_is_refused(tmp_path, length):
    path = write_archive(tmp_path, pickled())
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DataError, match=r"is no readable .tar.gz: .*; fetch it again"):
        read_release(RELEASE, tmp_path)


def test_missing_batches_are_named(tmp_path):
    write_folder(tmp_path, pickled(["data_batch_1"]))
    with pytest.raises(
        DataError, match=r"lacks data_batch_2, test_batch; wanted data_batch_1, d"
    ):
        read_release(RELEASE, tmp_path)


def test_a_pickle_must_not_name_anything_but_arrays(tmp_path):
    done = tmp_path / "done"
    contents = pickled()
    contents["data_batch_1"] = b"cpathlib\nPath\n" + f"(V{done}\n".encode() + b"tR."
    write_folder(tmp_path, contents)
    with pytest.raises(DataError, match=r"asks for pathlib.Path, which no CIFAR file needs"):
        read_release(RELEASE, tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x02}(U\x04da",
        b"nonsense",
        # Numbers of more than a byte.
        pickle.dumps({b"data": PIXELS[:4].astype(np.int16), b"labels": [0] * 4}, protocol=4),
    ],
)
def test_an_unreadable_pickle_is_refused(tmp_path, content):
    contents = {**pickled(), "data_batch_1": content}
    write_folder(tmp_path, contents)
    with pytest.raises(
        DataError, match=r"data_batch_1 is no readable pickle: .*; fetch it again"
    ):
        read_release(RELEASE, tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        [1, 2],
        {b"data": PIXELS[:4]},
        {b"data": "text", b"labels": [0] * 4},
        {b"data": PIXELS[:4, :9], b"labels": [0] * 4},
        {b"data": PIXELS[:4], b"labels": [0] * 3},
        {b"data": PIXELS[:4], b"labels": ["cat"] * 4},
    ],
)
def test_a_pickle_of_something_else_is_refused(tmp_path, content):
    contents = {**pickled(), "data_batch_1": pickle.dumps(content, protocol=4)}
    write_folder(tmp_path, contents)
    with pytest.raises(
        DataError, match=r"is no CIFAR batch: wanted 'data', uint8 of N rows of"
    ):
        read_release(RELEASE, tmp_path)


def test_wrong_counts_of_pickled_images_are_refused(tmp_path):
    write_folder(tmp_path, pickled())
    expected = r"holds 8 training and 4 test images, wanted 9 and 4; fetch cifar-10-python"
    with pytest.raises(DataError, match=expected):
        read_release(replace(RELEASE, train_images=9), tmp_path)


@pytest.mark.parametrize("part", ["train", "test"])
def test_missing_parquet_parts_are_named(tmp_path, part):
    write_parquet(tmp_path)
    for file in tmp_path.glob(f"{part}-*"):
        file.unlink()
    with pytest.raises(
        DataError, match=rf"lacks {part}-\*.parquet \(found t.*\); copy all files"
    ):
        read_release(RELEASE, tmp_path)


def test_wrong_counts_of_parquet_rows_are_refused(tmp_path):
    write_parquet(tmp_path, shards=(0, 4, 7, 11))
    expected = (
        r"has 7 rows in train-00000.*, train-00001.*parquet, wanted 8; a file is missing, tr"
    )
    with pytest.raises(DataError, match=expected):
        read_release(RELEASE, tmp_path)


@pytest.mark.parametrize("keep", [100, -100])
def test_a_truncated_parquet_file_is_refused(tmp_path, keep):
    write_parquet(tmp_path)
    file = tmp_path / "train-00001-of-00002.parquet"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(
        DataError, match=r"a parquet file of .* cannot be read: .*; fetch it again"
    ):
        read_release(RELEASE, tmp_path)


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [({"image": "pixels"}, "img or image"), ({"label": "name"}, "label")],
)
def test_missing_columns_are_named(tmp_path, columns, wanted):
    write_parquet(tmp_path, **columns)
    expected = rf"has the columns {columns.get('image', 'img')}, .*, wanted {wanted}; is this"
    with pytest.raises(DataError, match=expected):
        read_release(RELEASE, tmp_path)


def test_rows_that_are_no_cifar_images_are_refused(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="the parquet layout needs pyarrow")
    import pyarrow.parquet as pq

    for image, label, expected in (
        (b"no image", 1, r"row 0 cannot be decoded: .*; fetch the file again"),
        (
            encoded(PIXELS[0][:1536]),
            1,
            r"row 0 is 32 x 16, wanted 32 x 32; is this another set",
        ),
        (
            encoded(PIXELS[0]),
            None,
            r"row 0 has the label None, wanted a number; fetch the file",
        ),
    ):
        write_parquet(tmp_path)
        table = pa.table({"img": [{"bytes": image}] * 4, "label": pa.array([label] * 4)})
        pq.write_table(table, tmp_path / "train-00000-of-00002.parquet")
        with pytest.raises(DataError, match=expected):
            read_release(RELEASE, tmp_path)


@pytest.mark.parametrize("package", ["pyarrow", "PIL"])
def test_parquet_without_its_packages_names_what_to_install(tmp_path, monkeypatch, package):
    write_parquet(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    expected = (
        rf"train-00000.* needs the package {package}, which is not installed; "
        r"pip install 'hocket\[data\]', or use the original cifar-10-py"
    )
    with pytest.raises(OptionError, match=expected):
        read_release(RELEASE, tmp_path)


@pytest.mark.parametrize(("below", "present"), [("", "notes.txt"), ("nowhere", "nothing")])
def test_an_empty_folder_is_refused_with_what_it_should_hold(tmp_path, below, present):
    (tmp_path / "notes.txt").write_text("hello")
    expected = (
        rf"no cifar10 in .*: found {present}, wanted the folder cifar-10-batches-py, the file"
    )
    with pytest.raises(DataError, match=expected):
        read_release(RELEASE, tmp_path / below)


def test_labels_of_another_data_set_are_refused(tmp_path):
    write_folder(tmp_path, pickled())
    with pytest.raises(
        DataError, match=r"are of 2 classes, wanted 3; is this another data set"
    ):
        load_small(tmp_path, replace(RELEASE, classes=3))
    with pytest.raises(
        DataError, match=r"targets range from 0 to 1, but 1 classes want 0 to 0"
    ):
        load_small(tmp_path, replace(RELEASE, classes=1))


def test_unknown_normalisations_are_refused(tmp_path):
    with pytest.raises(
        OptionError, match=r"knows no normalisation 'x'; choose one of: fdg, adl"
    ):
        load_small(tmp_path, normalisation="x")


@pytest.mark.parametrize("subset", [0, 9])
def test_a_subset_must_fit(tmp_path, subset):
    with pytest.raises(OptionError, match=rf"subset is {subset}; give 1 to 8, or None for all"):
        load_small(tmp_path, subset=subset)

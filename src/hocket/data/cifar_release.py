"""CIFAR-10 and CIFAR-100 as published: names, counts, checksums and constants."""

# Shapes: N images.

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

MeanStd = tuple[tuple[float, float, float], tuple[float, float, float]]


class Images(NamedTuple):
    """Raw images, uint8 (N, 3, 32, 32), and their targets, int64 (N,)."""

    inputs: Tensor
    targets: Tensor


class Splits(NamedTuple):
    """Training and test images of a data set."""

    train: Images
    test: Images


@dataclass(frozen=True)
class Release:
    """Properties of one published data set.

    Args:
        name: Name of the data set, and of the folder with its parquet files.
        classes: Number of classes.
        folder: Name of the folder with the original pickles.
        archive: File name of the original archive, which holds `folder`.
        archive_md5: Published md5 sum of the archive.
        train_md5: Published md5 sum of each training file, in order.
        test_md5: Published md5 sum of each test file.
        pickled_label: Key of the labels in a pickle.
        label_columns: Columns of a parquet file that may hold the labels, best first.
        normalisations: Mean and standard deviation of each channel, by the paper that has them.
        train_images: Number of training images.
        test_images: Number of test images.
    """

    name: str
    classes: int
    folder: str
    archive: str
    archive_md5: str
    train_md5: Mapping[str, str]
    test_md5: Mapping[str, str]
    pickled_label: bytes
    label_columns: tuple[str, ...]
    normalisations: Mapping[str, MeanStd]
    train_images: int = 50_000
    test_images: int = 10_000


CIFAR10 = Release(
    name="cifar10",
    classes=10,
    folder="cifar-10-batches-py",
    archive="cifar-10-python.tar.gz",
    archive_md5="c58f30108f718f92721af3b95e74349a",
    train_md5={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    },
    test_md5={"test_batch": "40351d587109b95175f43aff81a1287e"},
    pickled_label=b"labels",
    label_columns=("label",),
    normalisations={
        # The official FDG code. Its standard deviations are means of the deviation within each
        # image, smaller than the deviation of all pixels; kept to reproduce the papers.
        "fdg": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        # The official ADL code: the deviation of all training pixels.
        "adl": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    },
)

CIFAR100 = Release(
    name="cifar100",
    classes=100,
    folder="cifar-100-python",
    archive="cifar-100-python.tar.gz",
    archive_md5="eb9058c3a382ffc7106e4002c42a8d85",
    train_md5={"train": "16019d7e3df5f24257cddd939b257f8d"},
    test_md5={"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
    pickled_label=b"fine_labels",
    label_columns=("fine_label", "label"),
    normalisations={
        # The official FDG code.
        "fdg": ((0.507, 0.487, 0.441), (0.267, 0.256, 0.276)),
    },
)

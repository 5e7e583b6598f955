"""CIFAR-10 and CIFAR-100, from any of their usual layouts."""

from collections.abc import Callable
from pathlib import Path

from hocket.data.augment import Chain, Crop, Flip, Normalise
from hocket.data.batches import Batches, InMemory
from hocket.data.cifar_parquet import read_parquet
from hocket.data.cifar_pickles import read_pickles
from hocket.data.cifar_release import CIFAR10, CIFAR100, Images, Release
from hocket.data.dataset import Data, check_targets
from hocket.errors import DataError, OptionError, list_names


def make_loader(release: Release) -> Callable[..., Data]:
    """Return the function that loads a published data set of the CIFAR family, by its name."""

    def load(
        *,
        data_dir: Path,
        batch_size: int,
        seed: int = 0,
        subset: int | None = None,
        augment: bool = True,
        normalisation: str = "fdg",
    ) -> Data:
        """Read the first layout that is there.

        Args:
            data_dir: Folder that is, or contains, the folder of the original pickles, its
                .tar.gz, or parquet files; all of them may also be in a folder inside it with
                the name of the data set.
            batch_size: Number of images in a batch.
            seed: Seed of order, crops and flips.
            subset: Number of training images to use, the first ones; None for all.
            augment: Whether training images are cropped (padding 4) and flipped at random.
            normalisation: Paper whose constants to use: "fdg" or, for cifar10, "adl".

        Raises:
            DataError: The data set is missing, damaged or incomplete.
            OptionError: An option is out of range, or a package that reads the layout is
                missing.
        """
        if normalisation not in release.normalisations:
            raise OptionError(
                f"{release.name} knows no normalisation {normalisation!r}; "
                f"choose one of: {', '.join(release.normalisations)}"
            )
        if subset is not None and not 1 <= subset <= release.train_images:
            raise OptionError(
                f"subset is {subset}; give 1 to {release.train_images}, or None for all"
            )

        # Read the images, and check their classes.
        train, test = read_release(release, data_dir, subset)
        for images in (train, test):
            check_targets(images.targets, release.classes)
        classes = len(test.targets.unique())
        if classes != release.classes:
            raise DataError(
                f"the test labels in {data_dir} are of {classes} classes, "
                f"wanted {release.classes}; is this another data set than {release.name}?"
            )

        # Augment training images only.
        normalise = Normalise(*release.normalisations[normalisation])
        change = Chain((Crop(padding=4), Flip(), normalise)) if augment else normalise
        return Data(
            name=release.name,
            train=Batches(InMemory(*train, change), batch_size, seed=seed, shuffle=True),
            test=Batches(InMemory(*test, normalise), batch_size),
            classes=release.classes,
            shape=(3, 32, 32),
            kind="images",
        )

    load.__name__ = load.__qualname__ = release.name
    title = f"CIFAR-{release.classes}: 50,000 training and 10,000 test images (3, 32, 32)"
    load.__doc__ = f"Load {title}.\n\n        {load.__doc__}"
    return load


cifar10 = make_loader(CIFAR10)
cifar100 = make_loader(CIFAR100)


def read_release(
    release: Release, data_dir: Path, subset: int | None = None
) -> tuple[Images, Images]:
    """Read training and test images: from pickles, else the archive, else parquet files.

    Args:
        release: Data set to read.
        data_dir: Folder to search.
        subset: Number of training images to read; None for all.

    Raises:
        DataError: The folder holds no layout of the data set, or a damaged one.
    """
    for root in (data_dir, data_dir / release.name):
        for path in (root, root / release.folder, root / release.archive):
            has_pickles = any((path / name).is_file() for name in release.train_files)
            if has_pickles or (path.is_file() and path.name == release.archive):
                train, test = read_pickles(release, path)
                # A copy, so that the omitted images are freed.
                kept = Images(train.inputs[:subset].clone(), train.targets[:subset].clone())
                return kept, test
        if any(root.glob("*.parquet")):
            return read_parquet(release, root, subset)
    names = sorted(path.name for path in data_dir.iterdir()) if data_dir.is_dir() else []
    raise DataError(
        f"no {release.name} in {data_dir}: found {list_names(names) or 'nothing'}, wanted "
        f"the folder {release.folder}, the file {release.archive}, or files train-*.parquet "
        f"and test-*.parquet, there or in a folder {release.name}; fetch one of them"
    )

"""CIFAR-10 and CIFAR-100, from whichever of their usual layouts lies in the data folder."""

from pathlib import Path

from hocket.data.augment import Chain, Crop, Flip, Normalise
from hocket.data.batches import Batches, InMemory
from hocket.data.cifar_parquet import read_parquet
from hocket.data.cifar_pickles import read_pickles
from hocket.data.cifar_release import CIFAR10, CIFAR100, Images, Parts, Release
from hocket.data.dataset import Data, check_targets
from hocket.errors import DataError, OptionError


def cifar10(
    *,
    data_dir: Path,
    batch_size: int,
    seed: int = 0,
    subset: int | None = None,
    augment: bool = True,
    normalisation: str = "fdg",
) -> Data:
    """CIFAR-10: 50,000 training and 10,000 test images (3, 32, 32) in 10 classes.

    Args:
        data_dir: Folder that is, or contains, `cifar-10-batches-py`, its .tar.gz, or parquet
            files; these also in a folder `cifar10`.
        batch_size: Images in a batch.
        seed: Decides order, crops and flips.
        subset: Use only the first so many training images; None for all.
        augment: Whether training images are cropped (padding 4) and flipped at random.
        normalisation: Whose constants to use: "fdg" or "adl".

    Raises:
        DataError: No such data set there, or a damaged or incomplete one.
        OptionError: An option is out of range, or a package to read the layout is missing.
    """
    return open_release(
        CIFAR10,
        data_dir=data_dir,
        batch_size=batch_size,
        seed=seed,
        subset=subset,
        augment=augment,
        normalisation=normalisation,
    )


def cifar100(
    *,
    data_dir: Path,
    batch_size: int,
    seed: int = 0,
    subset: int | None = None,
    augment: bool = True,
    normalisation: str = "fdg",
) -> Data:
    """CIFAR-100 with its 100 fine classes; options and errors as for `cifar10`."""
    return open_release(
        CIFAR100,
        data_dir=data_dir,
        batch_size=batch_size,
        seed=seed,
        subset=subset,
        augment=augment,
        normalisation=normalisation,
    )


def open_release(
    release: Release,
    *,
    data_dir: Path,
    batch_size: int,
    seed: int,
    subset: int | None,
    augment: bool,
    normalisation: str,
) -> Data:
    """Any release in the manner of CIFAR; see `cifar10` for options and errors."""
    if normalisation not in release.normalisations:
        raise OptionError(
            f"{release.name} knows no normalisation {normalisation!r}; "
            f"choose one of: {', '.join(release.normalisations)}"
        )
    if subset is not None and not 1 <= subset <= release.train_images:
        raise OptionError(
            f"subset is {subset}; give 1 to {release.train_images}, or None for all"
        )
    train, test = find(release, data_dir, subset)
    for images in (train, test):
        check_targets(images.targets, release.classes)
    found = len(test.targets.unique())
    if found != release.classes:
        raise DataError(
            f"the test labels in {data_dir} are of {found} classes, wanted {release.classes}; "
            f"is this another data set than {release.name}?"
        )
    normalise = Normalise(*release.normalisations[normalisation])
    prepare = Chain((Crop(padding=4), Flip(), normalise)) if augment else normalise
    return Data(
        name=release.name,
        train=Batches(InMemory(*train, prepare), batch_size, seed=seed, shuffle=True),
        test=Batches(InMemory(*test, normalise), batch_size),
        classes=release.classes,
        shape=(3, 32, 32),
        kind="images",
    )


def find(release: Release, data_dir: Path, subset: int | None = None) -> Parts:
    """Reads the first layout found in a folder: pickles, then the archive, then parquet files.

    Raises:
        DataError: None is there, or the one that is there is damaged.
    """
    for root in (data_dir, data_dir / release.name):
        for path in (root, root / release.folder, root / release.archive):
            batches = any((path / name).is_file() for name in release.train_md5)
            if batches or (path.is_file() and path.name == release.archive):
                train, test = read_pickles(release, path)
                # A copy, so that the images left out are freed.
                kept = Images(train.inputs[:subset].clone(), train.targets[:subset].clone())
                return Parts(kept, test)
        if any(root.glob("*.parquet")):
            return read_parquet(release, root, subset)
    found = sorted(path.name for path in data_dir.iterdir()) if data_dir.is_dir() else []
    raise DataError(
        f"no {release.name} in {data_dir}: found {', '.join(found[:8]) or 'nothing'}, wanted "
        f"the folder {release.folder}, the file {release.archive}, or files train-*.parquet "
        f"and test-*.parquet, there or in a folder {release.name}; fetch one of them"
    )

"""Scikit-learn's handwritten digits: real images that need neither a download nor a folder."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from hocket.data.augment import Normalise
from hocket.data.batches import Batches, InMemory
from hocket.data.dataset import Data, check_targets
from hocket.errors import missing_extra

TEST_IMAGES = 360
# Mean and standard deviation of the 1437 training images below, pixels scaled to 0 ... 1.
NORMALISE = Normalise(mean=(0.3053,), std=(0.3760,), white=16.0)


def digits(*, batch_size: int, seed: int = 0) -> Data:
    """Load 1437 training and 360 test images of shape (1, 8, 8) in 10 classes.

    The split is always the same, for any seed.

    Raises:
        OptionError: scikit-learn is not installed.
    """  # noqa: DOC501  # missing_extra returns an OptionError
    # Find the images of the installed scikit-learn; importing it would take a second.
    package = find_spec("sklearn")
    folders = package.submodule_search_locations if package is not None else None
    files = [Path(folder, "datasets", "data", "digits.csv.gz") for folder in folders or ()]
    file = next(filter(Path.is_file, files), None)
    if file is None:
        raise missing_extra(
            "scikit-learn", "data", "data set 'digits'", alternative="choose 'synthetic'"
        )

    # 1797 rows of 64 pixels and the label.
    rows = np.loadtxt(file, delimiter=",")
    # RandomState, because NumPy never changes its stream: the split outlives new versions.
    shuffled = rows[np.random.RandomState(0).permutation(len(rows))]
    images_N1HW = torch.from_numpy(shuffled[:, :-1].astype(np.uint8)).view(-1, 1, 8, 8)
    targets_N = torch.from_numpy(shuffled[:, -1].astype(np.int64))
    check_targets(targets_N, classes=10)
    train = InMemory(images_N1HW[:-TEST_IMAGES], targets_N[:-TEST_IMAGES], NORMALISE)
    test = InMemory(images_N1HW[-TEST_IMAGES:], targets_N[-TEST_IMAGES:], NORMALISE)
    return Data(
        name="digits",
        train=Batches(train, batch_size, seed=seed, shuffle=True),
        test=Batches(test, batch_size),
        classes=10,
        shape=(1, 8, 8),
        kind="images",
    )

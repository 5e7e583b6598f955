"""Scikit-learn's handwritten digits: real images that need neither a download nor a folder."""

import numpy as np
import torch

from hocket.data.augment import Normalise
from hocket.data.batches import Batches, InMemory
from hocket.data.dataset import Data, check_targets
from hocket.errors import OptionError

TEST_IMAGES = 360
# Mean and standard deviation of the 1437 training images below, pixels scaled to 0 ... 1.
NORMALISE = Normalise(mean=(0.3053,), std=(0.3760,), white=16.0)


def digits(*, batch_size: int, seed: int = 0) -> Data:
    """1437 training and 360 test images of shape (1, 8, 8) in 10 classes.

    The split is always the same, whatever the seed.

    Raises:
        OptionError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # no stubs
    except ImportError as error:
        raise OptionError(
            "data set 'digits' comes with scikit-learn, which is not installed; "
            "pip install scikit-learn, or choose 'synthetic'"
        ) from error
    images, labels = load_digits(return_X_y=True)
    # RandomState, because NumPy froze its stream: the split outlives new versions.
    shuffled = np.random.RandomState(0).permutation(len(images))
    images_N1HW = torch.from_numpy(images[shuffled].astype(np.uint8)).view(-1, 1, 8, 8)
    targets_N = torch.from_numpy(labels[shuffled].astype(np.int64))
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

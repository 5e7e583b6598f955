"""The real CIFAR-10 has the published statistics, if it is in the folder HOCKET_DATA."""

import os
from pathlib import Path

import pytest
import torch

from hocket.data import load
from hocket.data.cifar import read_release
from hocket.data.cifar_release import CIFAR10

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
@pytest.mark.skipif(
    "HOCKET_SLOW" not in os.environ, reason="decodes 60,000 images; set HOCKET_SLOW=1 to run"
)
def test_all_of_cifar10_has_the_published_statistics():
    train, test = read_release(CIFAR10, DATA_DIR)
    assert train.targets.bincount().tolist() == [5000] * 10
    assert test.targets.bincount().tolist() == [1000] * 10
    pixels = train.inputs.float() / 255
    expected = torch.tensor(CIFAR10.normalisations["adl"])
    torch.testing.assert_close(pixels.mean((0, 2, 3)), expected[0], rtol=0, atol=1e-4)
    torch.testing.assert_close(pixels.std((0, 2, 3)), expected[1], rtol=0, atol=1e-4)

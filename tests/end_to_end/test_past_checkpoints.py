"""Checkpoints of the last states of the repository: resumed, or refused by their version."""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.longer
ROOT = Path(__file__).parents[2]
TRAIN = ["train", "--epochs", "1", "--checkpoint-every", "20", "--threads", "1"]


def hocket(source, *words):
    return subprocess.run(
        [sys.executable, "-m", "hocket", *words],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.parametrize("age", range(1, 11))
def test_a_checkpoint_of_a_past_state_is_resumed_or_refused_by_its_version(age, tmp_path):
    archive = ["git", "-C", str(ROOT), "archive", f"HEAD~{age}", "src"]
    told = subprocess.run(archive, capture_output=True, check=False)
    if told.returncode:
        pytest.skip("the clone has no such history")
    with tarfile.open(fileobj=io.BytesIO(told.stdout)) as files:
        files.extractall(tmp_path, filter="data")
    run = tmp_path / "run"
    past = hocket(tmp_path / "src", *TRAIN, "--run-dir", str(run))
    assert past.returncode == 0, past.stderr
    now = hocket(ROOT / "src", "train", "--resume", str(run), "--epochs", "2")
    assert "Traceback" not in now.stderr
    assert not now.returncode or "another version of Hocket" in now.stderr, now.stderr

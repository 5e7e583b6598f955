"""In one process Hocket needs nothing that only Linux has."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from end_to_end.namespaces import environment

PROGRAM = Path(__file__).with_name("without_linux.py")


@pytest.mark.parametrize(
    ("system", "refusal"), [("darwin", ""), ("win32", "win32.*forks no processes.*torchrun")]
)
def test_one_process_trains_on_other_systems(tmp_path, system, refusal):
    words = [sys.executable, PROGRAM, system, tmp_path / "run"]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert any((tmp_path / "run/checkpoints").iterdir())
    assert (tmp_path / "run/network.pt").is_file()
    assert re.search(refusal, done.stdout)

"""In one process Hocket needs nothing that only Linux has."""

import re
from pathlib import Path

import pytest

from end_to_end.namespaces import run_python

PROGRAM = Path(__file__).with_name("without_linux.py")


@pytest.mark.parametrize(
    ("system", "refusal"), [("darwin", ""), ("win32", "win32.*forks no processes.*torchrun")]
)
def test_one_process_trains_on_other_systems(tmp_path, system, refusal):
    said = run_python(PROGRAM, system, tmp_path / "run", folder=tmp_path)
    assert any((tmp_path / "run/checkpoints").iterdir())
    assert (tmp_path / "run/network.pt").is_file()
    assert re.search(refusal, said)

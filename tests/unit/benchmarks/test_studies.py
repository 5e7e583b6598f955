"""The studies beside the benchmarks are possible ones."""

from pathlib import Path

import pytest

import benchmarks
from hocket_lab import Study

FILES = sorted(Path(benchmarks.__file__).parent.glob("studies/*.toml"))


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_every_row_of_a_study_can_be_run(file, tmp_path):
    # Some want a GPU, which the machine of the tests need not have.
    study = Study.read(file, base={"data_dir": str(tmp_path), "device": "cpu"})
    assert study.name == file.stem
    assert study.goal is not None
    runs = list(study.runs())
    assert len(runs) >= len(study.rows) * len(study.sweep_seeds)
    assert len({run.name for run in runs}) == len(runs)

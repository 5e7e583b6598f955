"""Runs whose folders are gone count as the record of the study says."""

import json
import math
import shutil

import pytest

from hocket.errors import RunFolderError
from hocket.runs.environment import environment
from hocket_lab.studies.record import SweepRecord
from hocket_lab.studies.results import read_source
from unit.lab.studies.in_process import pretend_runs
from unit.lab.studies.test_sweep import here, rate_of, study, sweep

__all__ = ["here"]

RATES = [0.1, 0.2, 0.4]


@pytest.fixture
def done(tmp_path, monkeypatch, here):
    """Folder of a study with a run that went well, one that diverged and one that failed."""
    losses = {0.1: 1.5, 0.2: math.inf, 0.4: None}
    pretend_runs(monkeypatch, lambda config: losses[rate_of(config)])
    sweep(study(learning_rates=RATES), tmp_path)
    assert here.started == 3
    return tmp_path


def test_a_run_that_ended_is_kept_and_one_that_failed_is_run_again(done, here, monkeypatch):
    (before,) = SweepRecord.read(done).rows
    shutil.rmtree(done / "runs")
    pretend_runs(monkeypatch, lambda config: 1.0)
    (row,) = sweep(study(learning_rates=RATES), done).rows
    assert here.started == 3 + 1
    assert row["runs"][:2] == before["runs"][:2]
    assert [run["state"] for run in row["runs"]] == ["finished", "diverged", "finished"]
    assert row["learning_rate"] == 0.4
    assert [tried["mean"] for tried in row["sweep"]] == [1.5, None, 1.0]
    assert sweep(study(learning_rates=RATES), done).rows == [row]
    assert here.started == 3 + 1
    sweep(study(learning_rates=RATES, seeds=[7]), done)  # of another configuration
    assert here.started == 3 + 1 + 3


def test_the_report_names_the_code_of_each_run(tmp_path):
    sweep(study(), tmp_path)
    (row,) = SweepRecord.read(tmp_path).rows
    (run,) = row["runs"]
    assert set(run["source"]) == {"commit", "dirty", "torch", "cpu", "gpu"}
    assert run["source"]["gpu"] is None
    file = tmp_path / "record.json"
    text = file.read_text().replace(run["source"]["torch"], "9.9")
    file.write_text(text.replace('"gpu": null', '"gpu": "Large 7"'))
    shutil.rmtree(tmp_path / "runs")
    sweep(study(), tmp_path)
    (made,) = (tmp_path / "README.md").read_text().splitlines()[-1:]
    assert " with torch 9.9 on " in made
    assert made.endswith(f" on {run['source']['cpu']} and Large 7.")


@pytest.mark.parametrize(
    ("device", "gpu"), [("cuda", "Large 7"), ("cuda:1", "Large 7"), ("cpu", None)]
)
def test_a_run_names_the_gpu_that_trained_it(tmp_path, device, gpu):
    values = environment(threads=1)
    values["machine"]["gpu"] = "Large 7"
    (tmp_path / "environment.json").write_text(json.dumps(values))
    assert read_source(tmp_path, device).gpu == gpu


@pytest.mark.parametrize(
    "damage",
    [
        lambda values: [],
        lambda values: {"rows": [{"runs": [{}]}]},
        lambda values: values["rows"][0]["runs"][0].pop("curve") and values,
        lambda values: values["rows"][0]["runs"][0]["source"].update(a=1) or values,
    ],
)
def test_a_record_that_cannot_be_read_is_refused_before_anything_runs(done, here, damage):
    shutil.rmtree(done / "runs")
    file = done / "record.json"
    file.write_text(json.dumps(damage(json.loads(file.read_text()))))
    with pytest.raises(RunFolderError, match="cannot read the runs of"):
        sweep(study(learning_rates=RATES), done)
    assert here.started == 3

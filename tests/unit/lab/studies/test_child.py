"""Process of a run: its result, its lock, its code, and its end with the sweep."""

import json
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from hocket.errors import DataError, NonFiniteError, RunFolderError
from hocket.runs.config import RunConfig
from hocket.runs.run_dir import lock_run_dir
from hocket.runs.summary import Summary
from hocket.training.results.metrics import EpochResult
from hocket_lab import Study, sweep
from hocket_lab.studies import child
from hocket_lab.studies.rows import DEFAULTS, Row, Run, file_digests
from hocket_lab.studies.run_folder import RunResult, check_is_run, read_result, write_result
from unit.lab.studies.in_process import pretend_runs, run_here


def summary(state, number=0):
    return Summary(state, "", None, (), 1.0, 1.0, (), (), number)


@pytest.mark.parametrize(
    ("end", "code", "result"),
    [
        (summary("finished"), 0, RunResult("finished")),
        (summary("interrupted", 15), 143, None),
        (NonFiniteError("loss is nan"), 1, RunResult("diverged", "loss is nan")),
        (DataError("no data"), 1, RunResult("failed", "no data")),
    ],
    ids=["finished", "stopped", "diverged", "failed"],
)
def test_each_end_leaves_its_result(tmp_path, end, code, result):
    assert child.report(RunConfig(run_dir=tmp_path), end) == code
    assert read_result(tmp_path) == result


def test_a_training_without_all_of_its_metrics_has_failed(tmp_path):
    epochs = [EpochResult(number, 1.0, None, 1.0, 8, (0.0,), (0,)) for number in range(3)]
    finished = replace(summary("finished"), epochs=tuple(epochs))
    log = "".join(f'{{"kind": "epoch", "number": {number}}}\n' for number in (0, 2))
    (tmp_path / "metrics.jsonl").write_text(log)
    assert child.report(RunConfig(run_dir=tmp_path), finished) == 0
    result = read_result(tmp_path)
    assert result.state == "failed"
    assert result.message.startswith("its metrics have 2 of 3 epochs")


def test_a_run_waits_for_the_process_of_an_earlier_sweep(tmp_path):
    locked, waited = threading.Event(), threading.Event()

    def hold():
        with lock_run_dir(tmp_path):
            locked.set()
            waited.wait(0.5)

    holder = threading.Thread(target=hold)
    holder.start()
    locked.wait()
    child._wait_for_lock(tmp_path)
    with lock_run_dir(tmp_path):
        waited.set()
    holder.join()


# Folders of runs, whose files may be damaged.

RUN = Row("row", {"epochs": 2}, ()).run(None, 0)


@pytest.mark.parametrize("text", ["", "[1]", '{"end": 1}', '{"state": "lost"}'])
def test_a_result_is_read_as_it_was_written_and_a_damaged_one_is_refused(tmp_path, text):
    assert read_result(tmp_path) is None
    write_result(tmp_path, RunResult("diverged", "loss is nan"))
    assert read_result(tmp_path) == RunResult("diverged", "loss is nan")
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(RunFolderError, match=r"result\.json'.*; delete it"):
        read_result(tmp_path)


def test_the_folder_of_another_run_is_refused(tmp_path):
    check_is_run(tmp_path, RUN)
    RUN.config.write(tmp_path / "run.json")
    check_is_run(tmp_path, RUN)
    Row("row", {"epochs": 3}, ()).run(None, 0).config.write(tmp_path / "run.json")
    with pytest.raises(RunFolderError, match=r"(?s)another run.*epochs is 3; the study has 2"):
        check_is_run(tmp_path, RUN)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"is not JSON.*; move .* away"):
        check_is_run(tmp_path, RUN)


# A run counts for the code that it has run.

NETWORK = """
from torch import nn

def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A file with a network, in the working directory, where modules are found as well."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "watched_nets", raising=False)  # of another test
    Path("watched_nets.py").write_text(NETWORK)
    return Path("watched_nets.py")


@pytest.mark.parametrize(
    "network", ["no_such_module:build", "watched_nets.no.such:build", "mlp"]
)
def test_a_network_without_a_file_has_no_digest(file, network):
    assert file_digests({"network": network}) == {}


def test_a_file_that_changes_during_a_sweep_breaks_nothing(file, monkeypatch, tmp_path):
    run_here(monkeypatch)

    def metrics(config):
        file.write_text(NETWORK + f"# after seed {config.seed}\n")
        return 1.0

    pretend_runs(monkeypatch, metrics)
    base = {"network": "watched_nets.py:build", "epochs": 1, "stages": 1}
    study = Study(name="own", base=base, grid={"method": "bp"}, seeds=[0, 1])
    (row,) = sweep(study, "out", progress=False).rows
    assert [run["state"] for run in row["runs"]] == ["finished", "finished"]


def test_a_run_whose_file_has_changed_since_it_was_named_is_not_run(file, monkeypatch):
    monkeypatch.setattr(child, "_listen", lambda turns, threads: None)
    config = RunConfig(network="watched_nets.py:build", run_dir=Path("run"), **DEFAULTS)
    named = Run("own", config, None, 0).files
    Path("run").mkdir()
    file.write_text(NETWORK + "# changed\n")
    assert child.main([json.dumps(config.as_dict()), json.dumps(named)]) == 1
    result = read_result(Path("run"))
    assert result.state == "failed"
    assert "the file of its plan or of its own code has changed" in result.message

"""Runs as a table: one row for each, with settings and results."""

import json
import sys

import pytest

import hocket
from hocket.errors import OptionError, RunFolderError
from hocket.runs.config import RunConfig
from unit.lab.report.made_runs import make_run

pytest.importorskip("pandas")


def test_each_run_has_one_row_with_its_settings_and_the_results_of_its_last_epoch(tmp_path):
    make_run(tmp_path / "a", seed=3)
    make_run(tmp_path / "b", epochs=1, state=None, method="bp", processes=2)
    make_run(tmp_path / "study/runs/c", epochs=0, state="interrupted")
    found = hocket.results(tmp_path / "*", tmp_path, str(tmp_path / "a"))
    columns = ["run", "state", "epochs_done", "updates_done", "train_loss", "test_error"]
    rows = json.loads(found[[*columns, "seconds"]].to_json(orient="values"))
    assert rows == [
        ["a", "finished", 3, 30, 1.0, 0.3, 4.5],
        ["b", "unfinished", 1, 10, 2.0, 0.5, 1.5],
        ["c", "interrupted", 0, None, None, None, 0.0],
    ]
    settings = RunConfig(method="bp", stages=2, epochs=3).as_dict()
    assert {name: found.to_dict("records")[1][name] for name in settings} == settings
    assert found["samples_per_s"][0] == pytest.approx(3 * 640 / 4.5)
    assert found["folder"][0] == str(tmp_path / "a")


def test_folders_that_cannot_be_read_are_left_out_with_the_reason(tmp_path):
    make_run(tmp_path / "[whole]")
    (make_run(tmp_path / "broken") / "metrics.jsonl").write_text('{"kind": "epoch"}\n')
    (tmp_path / "empty").mkdir()
    with pytest.warns(UserWarning, match="left out") as told:
        found = hocket.results(tmp_path / "*", tmp_path / "broken")  # which is told once
    assert list(found["run"]) == ["[whole]"]
    assert ["broken" in str(each.message) for each in told] == [True, False]
    assert list(hocket.results(tmp_path / "[whole]")["run"]) == ["[whole]"]
    with pytest.raises(RunFolderError, match=r"'(nothing){64}' is no run folder"):
        hocket.results("nothing" * 64)  # more than a name may have


def test_pandas_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(OptionError, match=r"hocket\[pandas\]"):
        hocket.results("runs/*")

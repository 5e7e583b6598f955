"""Times to the target of a study: a small study, its times, its table and its refusals."""

from functools import partial

import pytest

from benchmarks.harness.record import Record
from benchmarks.harness.studied_rows import read_study
from benchmarks.report.render import render
from benchmarks.study_times import StudyTimesSettings, measure_study_times
from hocket.errors import OptionError
from hocket_lab.studies.study import Study
from hocket_lab.studies.sweep import sweep
from unit.lab.studies.in_process import pretend_runs

pytestmark = pytest.mark.usefixtures("row_server", "studies_here")
BP = {"method": "bp", "stages": 1}
ADL = {"method": "adl:accumulate=2", "stages": 2, "plan": "hidden1", "batch_size": 32}
STUDY = partial(
    Study,
    name="small",
    base={
        "network": "mlp:hidden=[16,16]",
        "data": "digits",
        "batch_size": 64,
        "updates": 20,
        "evaluate_every": 5,
        "optimizer": "AdamW:lr=0.01",
    },
    grid=[BP, ADL],
    learning_rates=[0.003, 0.01],
    seeds=[0, 1],
    seeds_for_sweep=[0],
    target="test_loss <= 1.9",
    jobs=1,
)
SETTINGS = partial(StudyTimesSettings, repetitions=2, seconds=0.02)


def test_updates_of_a_study_are_multiplied_by_seconds_in_processes(tmp_path, monkeypatch):
    kept = sweep(STUDY(), tmp_path / "study")
    settings = SETTINGS(
        out=tmp_path, study=str(tmp_path / "study"), baselines=("ddp", "independent")
    )
    measure_study_times(settings)
    record = Record.read(tmp_path)
    *rows, independent = record.rows
    bp, adl, ddp = rows
    assert [row["processes"] for row in record.rows] == [1, 2, 2, 2]
    assert [row["base"] for row in record.rows] == [True, False, False, False]
    assert (bp["updates"], adl["updates"]) == tuple(
        row["to_target"]["updates"] for row in kept.rows
    )
    assert ddp["updates"] == bp["updates"]
    assert independent["update_s"] > 0
    assert (independent["updates"], independent["seconds"]) == (None, None)
    for row in rows:
        assert 0 < row["min_s"] <= row["update_s"] <= row["max_s"]
        assert row["seconds"] == row["updates"]["mean"] * row["update_s"]
        reached = next(point for point in row["curve"] if point["test_loss"] <= 1.9)
        confirmed = row["confirmed"]
        assert confirmed["updates"] == reached["updates"]
        product = confirmed["updates"] * row["update_s"]
        assert confirmed["beside_product"] == confirmed["seconds"] / product
        # The run completes batches that were in flight at the evaluation of the study.
        assert confirmed["test_loss"] == pytest.approx(reached["test_loss"], rel=0.05)
    # What is there is measured no more.
    for name in ("time_over_link", "run_training"):
        monkeypatch.setattr(f"benchmarks.study_times.{name}", None)
    measure_study_times(settings)
    assert Record.read(tmp_path).rows == record.rows
    render(tmp_path)
    shown = (tmp_path / "README.md").read_text()
    assert f"| {1000 * adl['update_s']:.1f} |" in shown
    assert (tmp_path / "study-times.svg").is_file()


def test_a_row_that_did_not_reach_the_target_has_no_seconds_to_it(tmp_path, monkeypatch):
    def pretend(_, rows, **__):
        return {one.row: {"update_s": 0.1, "min_s": 0.1, "max_s": 0.1} for one in rows}

    monkeypatch.setattr("benchmarks.study_times.time_over_link", pretend)
    sweep(STUDY(grid=[BP], target="test_loss <= 0.01"), tmp_path / "study")
    measure_study_times(
        SETTINGS(out=tmp_path, study=str(tmp_path / "study"), baselines=("bp-all",))
    )
    record = Record.read(tmp_path)
    assert [row["row"] for row in record.rows] == ["bp, stages 1", "bp-all"]
    assert {row["seconds"] for row in record.rows} == {None}
    assert {row["confirmed"] for row in record.rows} == {None}
    render(tmp_path)
    assert "| - | - | - | - | - | - |" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize(
    ("study", "settings", "said"),
    [
        ({"grid": [BP], "target": "test_error <= 0.5"}, {}, "test_error <= 0.5"),
        ({"grid": [BP], "target": None}, {}, "target is 'none given'"),
        ({"grid": [ADL]}, {}, "independent, bp-all, ddp would have the updates of bp"),
        (
            {"grid": [{"method": "fdg", "stages": 2}]},
            {"baselines": ()},
            "'fdg, stages 2' is cut by .*; name its cuts in the study",
        ),
    ],
    ids=["of errors", "without target", "without bp", "balanced"],
)
def test_a_study_that_cannot_be_timed_is_refused(tmp_path, monkeypatch, study, settings, said):
    pretend_runs(monkeypatch, lambda config: 1.0)
    sweep(STUDY(**study), tmp_path / "study")
    with pytest.raises(OptionError, match=said):
        measure_study_times(SETTINGS(out=tmp_path, study=str(tmp_path / "study"), **settings))


def test_an_unfinished_study_is_refused(tmp_path):
    record = sweep(STUDY(grid=[BP]), tmp_path)
    record.rows[0]["state"] = "incomplete"
    record.write()
    with pytest.raises(OptionError, match=r"not finished \(missing: bp, stages 1\); finish it"):
        read_study(tmp_path, None)

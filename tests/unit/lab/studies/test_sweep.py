"""Sweeps with runs in this process: what is run, kept, chosen and reported."""

import errno
import json
import math
import os
import re
import shutil
import sys
from dataclasses import replace
from unittest.mock import Mock

import pytest

import hocket_lab
from hocket.errors import RunFolderError
from hocket.files import JSON_LIMIT
from hocket.runs.environment import environment
from hocket.runs.run_dir import lock_run_dir
from hocket.runs.train import train
from hocket_lab import Study
from hocket_lab.report.find_runs import find_runs
from hocket_lab.report.groups import group_runs
from hocket_lab.studies import rows as rows_module
from hocket_lab.studies import sweep as sweep_module
from hocket_lab.studies.pictures import chosen_curves, draw_curves
from hocket_lab.studies.record import PICTURE, SweepRecord
from hocket_lab.studies.report import results_table
from hocket_lab.studies.results import read_source
from hocket_lab.studies.rows import Row
from hocket_lab.studies.run_folder import RunResult, write_result
from unit.lab.studies.in_process import (
    NAN_NETWORK,
    TINY,
    HereProcess,
    config_of,
    pretend_runs,
    run_here,
)


@pytest.fixture(autouse=True)
def here(monkeypatch):
    return run_here(monkeypatch, draw=False)


def study(**values):
    given = {"base": TINY, "grid": {"method": "bp", "stages": 1}, "jobs": 1} | values
    return Study(name="tiny", **given)


def sweep(chosen, folder):
    return hocket_lab.sweep(chosen, folder, progress=False)


def rate_of(config):
    return float(re.search("lr=([^,]*)", config.optimizer)[1])


def test_a_sweep_trains_as_the_command_does(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])
    record = sweep(study(seeds=[0, 1], target="test_loss <= 100"), tmp_path / "a")
    (row,) = record.rows
    assert row["state"] == "complete"
    assert row["to_target"]["reached"] == 2
    assert row["to_target"]["updates"]["values"] == [4, 4]
    config = Row("", {**TINY, "method": "bp", "stages": 1}, ()).run(None, 1).config
    summary = train(replace(config, run_dir=tmp_path / "alone"))
    losses = [epoch.evaluation.loss for epoch in summary.epochs]
    assert [point["test_loss"] for point in row["runs"][1]["curve"]] == losses
    assert row["final"]["test_loss"]["values"][1] == losses[-1]


def test_a_second_call_runs_nothing_and_writes_the_same(tmp_path, here, monkeypatch):
    monkeypatch.setattr(sweep_module, "draw_curves", draw_curves)
    once = study(learning_rates=[0.05])
    sweep(once, tmp_path)
    files = [tmp_path / name for name in ("record.json", "README.md", "curves.svg")]
    rows = SweepRecord.read(tmp_path).rows
    assert here.started == 1
    assert (rows[0]["learning_rate"], rows[0]["at_edge"]) == (0.05, False)
    before = [file.read_bytes() for file in files[1:]]
    sweep(once, tmp_path)
    assert here.started == 1
    assert SweepRecord.read(tmp_path).rows == rows
    assert [file.read_bytes() for file in files[1:]] == before


def test_a_changed_study_keeps_runs_that_are_the_same_and_names_the_others(
    tmp_path, monkeypatch, here
):
    """It keeps their results also if their folders are gone."""
    pretend_runs(monkeypatch, lambda config: 1.0)
    both = study(grid={"method": ["bp", "fdg"], "stages": 2})
    before = sweep(both, tmp_path)
    assert (before.orphans, here.started) == ((), 2)
    changed = study(grid={"method": ["fdg", "ddg"], "stages": 2}, base=TINY | {"threads": 1})
    record = sweep(changed, tmp_path)
    assert here.started == 3
    (orphan,) = record.orphans
    assert orphan.startswith("bp-stages-2-lr-0.05-seed-0-")
    shutil.rmtree(tmp_path / "runs")
    record = sweep(study(grid={"method": "ddg", "stages": 2}), tmp_path)
    assert orphan in {run["folder"].rpartition("/")[2] for run in record.kept}
    assert len(record.kept) == 2
    after = sweep(both, tmp_path)
    assert here.started == 3
    assert after.rows == before.rows


def test_the_best_rate_gets_the_other_seeds(tmp_path, monkeypatch, here):
    pretend_runs(monkeypatch, lambda config: abs(rate_of(config) - 0.2) + config.seed / 100)
    record = sweep(
        study(learning_rates=[0.1, 0.25, 0.4], seeds=[0, 1, 2], seeds_for_sweep=[0, 1]),
        tmp_path,
    )
    (row,) = record.rows
    assert here.started == 3 * 2 + 1
    assert (row["learning_rate"], row["at_edge"]) == (0.25, False)
    assert row["final"]["test_loss"]["values"] == pytest.approx([0.05, 0.06, 0.07])
    assert [tried["mean"] for tried in row["sweep"]] == pytest.approx([0.105, 0.055, 0.205])
    report = (tmp_path / "README.md").read_text()
    assert "| bp, stages 1 | 0.1050 | **0.0550** | 0.2050 |" in report
    assert {*record._repr_markdown_().splitlines()} <= {*report.splitlines()}
    assert "\nMean and standard deviation over the seeds 0, 1, 2, after the last" in report


def test_held_out_examples_choose_the_rate_and_the_test_does_not(tmp_path, monkeypatch, here):
    """By the test 0.4 would be the best rate."""

    def loss(config):
        best = 0.1 if config.hold_out else 0.4
        return abs(rate_of(config) - best) + config.seed / 100

    pretend_runs(monkeypatch, loss)
    chosen = study(
        learning_rates=[0.1, 0.2, 0.4],
        seeds=[0, 1],
        seeds_for_sweep=[0],
        hold_out_for_sweep=0.25,
        target="test_loss <= 0.305",
    )
    record = sweep(chosen, tmp_path)
    (row,) = record.rows
    assert here.started == 3 + 2
    assert (row["learning_rate"], row["state"]) == (0.1, "complete")
    assert [each["mean"] for each in row["sweep"]] == pytest.approx([0.0, 0.1, 0.3])
    assert row["final"]["test_loss"]["values"] == pytest.approx([0.3, 0.31])
    assert (row["to_target"]["reached"], row["to_target"]["runs"]) == (1, 2)
    marked = [(run["hold_out"], run["seed"], run["chosen"]) for run in row["runs"]]
    assert marked == [(0.25, 0, False)] * 3 + [(0.0, 0, True), (0.0, 1, True)]
    assert [curve[-1]["test_loss"] for curve in chosen_curves(row)] == pytest.approx(
        row["final"]["test_loss"]["values"]
    )
    report = (tmp_path / "README.md").read_text()
    assert "In the sweep 0.25 of the training examples were held out" in report
    assert "| bp, stages 1, 0.25 held out | 0.1 | 0 | finished | 0.0000 |" in report
    assert "--hold-out 0.25" in report
    assert sweep(chosen, tmp_path).orphans == ()
    assert here.started == 5


def test_a_row_without_rates_holds_nothing_out(tmp_path, monkeypatch, here):
    pretend_runs(monkeypatch, lambda config: config.hold_out + config.seed)
    grid = [{"method": "bp", "stages": 1}, {"method": "fdg", "learning_rates": [0.1, 0.2]}]
    rows = sweep(study(grid=grid, seeds=[0, 1], hold_out_for_sweep=0.5), tmp_path).rows
    assert here.started == 2 + 2 * 2 + 2
    assert [run["chosen"] for run in rows[0]["runs"]] == [True, True]
    assert [row["final"]["test_loss"]["values"] for row in rows] == [[0, 1], [0, 1]]


def test_a_run_that_diverges_is_a_result_and_the_worst(tmp_path, monkeypatch, here):
    pretend_runs(monkeypatch, lambda config: math.inf if rate_of(config) > 0.2 else 1.0)
    (row,) = sweep(study(learning_rates=[0.1, 0.4]), tmp_path).rows
    assert (row["state"], row["learning_rate"], row["at_edge"]) == ("complete", 0.1, True)
    assert [run["state"] for run in row["runs"]] == ["finished", "diverged"]
    report = (tmp_path / "README.md").read_text()
    assert "| bp, stages 1 | **1.0000** | diverged |" in report
    assert "| diverged: loss is nan |" in report
    assert "| 0.1 (edge) |" in report
    assert "\nSeed 0, after the last epoch." in report  # which has no deviation
    sweep(study(learning_rates=[0.1, 0.4]), tmp_path)
    assert here.started == 2


@pytest.mark.parametrize(("error", "second"), [("0.2", "test_error"), ("null", "test_loss")])
def test_a_run_whose_last_loss_is_not_finite_has_diverged_by_any_metric(
    tmp_path, monkeypatch, here, error, second
):
    """A finite error says nothing: of outputs that are NaN one class is predicted."""
    pretend_runs(monkeypatch, lambda config: 1.0 if rate_of(config) < 0.2 else 2.0)
    start = HereProcess.__init__

    def overflow(self, words, output):
        """End with an evaluation that JSON has no number for."""
        start(self, words, output)
        file, ended = config_of(words).run_dir / "metrics.jsonl", '"loss": 2.0, "error": 0.2'
        file.write_text(file.read_text().replace(ended, f'"loss": null, "error": {error}'))

    monkeypatch.setattr(HereProcess, "__init__", overflow)
    for number, metric in enumerate(("test_loss", second, "test_loss", "train_loss")):
        record = sweep(study(learning_rates=[0.1, 0.4], select=metric), tmp_path)
        assert (record.failures, here.started) == ([], 2)
        (row,) = record.rows
        assert [run["state"] for run in row["runs"]] == ["finished", "diverged"]
        assert row["learning_rate"] == 0.1
        assert "diverged: its last test_loss is NaN" in (tmp_path / "README.md").read_text()
        if number == 1:
            shutil.rmtree(tmp_path / "runs")  # and as the record says


@pytest.mark.parametrize(
    ("rates", "at_high_rates", "state", "shown"),
    [
        ([0.4], math.inf, "diverged", "| bp, stages 1 (diverged) | - |"),
        ([0.4, 0.5], math.inf, "diverged", "| bp, stages 1 (diverged) | - |"),
        ([0.1, 0.4], None, "incomplete", "| 1.0000 | missing |"),
    ],
    ids=["one diverged", "all diverged", "one failed"],
)
def test_a_row_without_good_runs_at_all_rates_has_no_best_rate(
    tmp_path, monkeypatch, here, rates, at_high_rates, state, shown
):
    pretend_runs(monkeypatch, lambda config: at_high_rates if rate_of(config) > 0.2 else 1.0)
    chosen = study(learning_rates=rates, seeds=[0, 1], seeds_for_sweep=[0])
    (row,) = sweep(chosen, tmp_path).rows
    assert here.started == len(rates)
    assert (row["state"], row["learning_rate"]) == (state, None)
    assert row["final"] == dict.fromkeys(("test_loss", "test_error", "train_loss"))
    assert not (tmp_path / "curves.svg").exists()
    assert shown in (tmp_path / "README.md").read_text()


def test_a_run_that_fails_or_a_full_disk_stops_no_other_run_and_is_tried_again(
    tmp_path, monkeypatch, here
):
    lucky = []
    pretend_runs(monkeypatch, lambda config: 1.0 if config.seed or lucky else None)
    grid = [{"method": "bp", "stages": 1}, {"method": "fdg", "learning_rates": [0.1]}]
    chosen = study(grid=grid, seeds=[0, 1], seeds_for_sweep=[0])
    record = sweep(chosen, tmp_path)
    row, _ = record.rows
    assert here.started == 2 + 1, "where no rate is chosen, no seed waits for another"
    states = [(run["state"], run["chosen"]) for run in row["runs"]]
    assert states == [("failed", True), ("finished", True)]
    assert row["state"] == "incomplete"
    failure, _ = record.failures
    assert re.search(r"bp, stages 1.*, seed 0: no luck \(see .*runs/bp-", failure)
    lucky.append(1)
    record = sweep(chosen, tmp_path)
    assert (record.failures, record.rows[0]["state"]) == ([], "complete")
    assert here.started == 3 + 1 + 2
    monkeypatch.setattr("hocket_lab.studies.child.write_result", lambda folder, result: None)
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr("hocket_lab.studies.pool.write_result", full)
    (row,) = sweep(study(seeds=[0, 1]), tmp_path / "full").rows
    assert here.started == 6 + 2
    assert row["state"] == "incomplete"
    assert (tmp_path / "full/record.json").is_file()


def test_a_run_without_the_metric_has_failed_and_damaged_metrics_are_named(
    tmp_path, monkeypatch
):
    pretend_runs(monkeypatch, lambda config: 1.0)
    record = sweep(study(), tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    text = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(text.replace('"error": 0.1', '"error": null'))
    monkeypatch.setattr(
        HereProcess,
        "__init__",
        lambda self, words, _: write_result(config_of(words).run_dir, RunResult("finished")),
    )
    monkeypatch.setattr(HereProcess, "returncode", 0, raising=False)
    assert record.failures == []
    (tmp_path / "record.json").unlink()
    (failure,) = sweep(study(select="test_error"), tmp_path).failures
    assert "it ended without a test_error to compare" in failure
    (folder / "metrics.jsonl").write_text('{"kind": "epoch"}\n')
    with pytest.raises(RunFolderError, match=rf"cannot read the run .*{folder.name}.*number"):
        sweep(study(), tmp_path)


def test_a_process_that_dies_in_silence_says_nothing_of_an_earlier_one(tmp_path, monkeypatch):
    def die(self, words, output):
        self.returncode = -9
        if not (config_of(words).run_dir / "output.log").read_bytes():
            output.write(b"MemoryError: none left\n")

    monkeypatch.setattr(HereProcess, "__init__", die)
    assert ": MemoryError" in sweep(study(), tmp_path).failures[0]
    (failure,) = sweep(study(), tmp_path).failures
    assert "its process ended with signal 9 (see " in failure


@pytest.mark.parametrize(
    ("second", "state", "shown"),
    [(2.0, "complete", "| 1 of 2 | - | - |"), (math.inf, "diverged", "(diverged)")],
)
def test_a_target_that_not_all_seeds_reach_has_no_mean(
    tmp_path, monkeypatch, second, state, shown
):
    pretend_runs(monkeypatch, lambda config: second if config.seed else 1.0)
    (row,) = sweep(study(seeds=[0, 1], target="test_loss <= 1.5"), tmp_path).rows
    goal = row["to_target"]
    assert (row["state"], goal["reached"], goal["runs"]) == (state, 1, 2)
    assert goal["updates"] is None
    assert shown in (tmp_path / "README.md").read_text()


def test_the_error_of_gradients_is_reported_where_it_was_measured(tmp_path):
    grid = {"method": "fdg", "stages": 2, "gradient_error_every": 2}
    (row,) = sweep(study(grid=grid, seeds=[0, 1]), tmp_path).rows
    cosines = [each["cosine"] for each in row["gradient_error"]]
    assert len(cosines) == 2
    assert cosines[1] == pytest.approx(1.0, abs=1e-6)
    assert f"{min(cosines):.3f} |" in (tmp_path / "README.md").read_text()


def test_a_rate_that_fails_leaves_the_other_seeds_of_the_best_one(tmp_path, monkeypatch, here):
    seeds = {"seeds": [0, 1, 2], "seeds_for_sweep": [0]}
    pretend_runs(monkeypatch, lambda config: None if rate_of(config) == 0.4 else 1.0)
    sweep(study(learning_rates=[0.1, 0.2], **seeds), tmp_path)
    shutil.rmtree(tmp_path / "runs")
    wider = study(learning_rates=[0.1, 0.2, 0.4], **seeds)
    assert len(sweep(wider, tmp_path).kept) == 2
    assert here.started == 4 + 1
    pretend_runs(monkeypatch, lambda config: 1.0 + rate_of(config))
    (row,) = sweep(wider, tmp_path).rows
    assert here.started == 4 + 1 + 1
    assert row["state"] == "complete"


def test_each_run_has_the_command_that_repeats_it(tmp_path, monkeypatch):
    pretend_runs(monkeypatch, lambda config: 1.0)
    base = TINY | {"data": "text", "data_dir": str(tmp_path), "checksum": False}
    grid = [{"method": ["bp", "fdg"], "stages": [1], "data_dir": str(tmp_path)}]
    chosen = study(base=base | {"channels_last": True}, grid=grid)
    record = sweep(chosen, tmp_path / "out")
    assert record.values["settings"]["grid"][0]["data_dir"] == "DIR"
    assert record.values["command"] == "hocket_lab.sweep(study)"
    command = record.rows[0]["runs"][0]["command"]
    assert command.startswith("hocket train --method bp --stages 1 ")
    assert "--network 'mlp:hidden=[4]' --data text --data-dir DIR" in command
    assert "--channels-last" in command
    assert "--checkpoint-every" not in command
    assert str(tmp_path) not in (tmp_path / "out/record.json").read_text()


def test_batches_that_a_run_skipped_are_told(tmp_path):
    (tmp_path / "own.py").write_text(NAN_NETWORK)
    base = TINY | {"network": f"{tmp_path}/own.py:build", "on_nan": "skip"}
    record = sweep(study(base=base), tmp_path / "out")
    assert [point["skipped"] for point in record.rows[0]["runs"][0]["curve"]] == [1, 1]
    text = (tmp_path / "out/README.md").read_text()
    assert "| finished, 1 batch skipped |" in text
    assert "Batches that were skipped, as something was NaN or infinite, are among" in text


def test_a_folder_that_is_in_use_or_cannot_be_written_is_refused(tmp_path):
    (run,) = study().runs()
    for folder in ("runs", "README.md"):
        (tmp_path / f"no {folder}" / folder).mkdir(parents=True)
    (tmp_path / "no runs/runs" / run.name).touch()
    (tmp_path / "file").touch()
    for name, said in (
        ("no runs", "cannot write the folder .* of a run: File exists"),
        ("file", "cannot write the folder .* with --out"),
        ("no README.md", "cannot write the folder .*regular file.*--out"),
    ):
        with pytest.raises(RunFolderError, match=said):
            sweep(study(), tmp_path / name)
    in_use = pytest.raises(RunFolderError, match=r"folder of a study .* is in use by process")
    with lock_run_dir(tmp_path), in_use:
        sweep(study(), tmp_path)
    with pytest.raises(RunFolderError, match="cannot read the record"):
        SweepRecord.read(tmp_path / "none")


fail = Mock(side_effect=ValueError("no such colour"))


def fill(values, file):
    file.write_text("<svg")
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (fail, "there is no picture of the study: no such colour"),
        (fill, "no picture of the study: .*No space left"),
        (draw_curves, r"a picture needs .*hocket\[plot\]"),
    ],
    ids=["error", "full disk", "no matplotlib"],
)
def test_a_picture_that_cannot_be_drawn_costs_no_record(tmp_path, monkeypatch, draw, said):
    pretend_runs(monkeypatch, lambda config: 1.0)
    monkeypatch.setattr(sweep_module, "draw_curves", draw)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.warns(UserWarning, match=said):
        sweep(study(), tmp_path)
    assert SweepRecord.read(tmp_path).rows
    assert not (tmp_path / PICTURE).exists()
    assert PICTURE not in (tmp_path / "README.md").read_text()


def test_staleness_is_shown_where_there_is_some_and_a_label_may_look_like_a_formula(
    tmp_path, monkeypatch
):
    pretend_runs(monkeypatch, lambda config: 1.0)
    grid = {"method": ["ddg", "dgl-async", "bp"], "stages": 3, "checkpoint_keep": 5}
    record = sweep(study(grid=grid), tmp_path)
    table = results_table(record.values)
    assert "| ddg | 2 | 3 | 1.0000 |" in table
    assert "| dgl-async | - | - | 1.0000 |" in table
    assert "| bp | 0 | 1 | 1.0000 |" in table
    record.rows[0]["options"]["method"] = "a method of the past"
    assert "stale" not in results_table(record.values)
    record.rows[0]["row"] = "a $b_{$ c"
    draw_curves(record.values, tmp_path / "curves.svg")
    assert (tmp_path / "curves.svg").stat().st_size


def test_results_that_a_run_could_not_write_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr("hocket.runs.training_run.save_weights", Mock(side_effect=OSError))
    with pytest.warns(UserWarning, match=r"cannot write .*network\.pt") as told:
        sweep(study(), tmp_path)
    assert str(told[-1].message).startswith("bp, stages 1, seed 0: cannot write")


def test_the_runs_of_a_study_are_not_built_anew_as_each_of_them_ends(tmp_path, monkeypatch):
    pretend_runs(monkeypatch, lambda config: 1.0)
    built = Mock(wraps=rows_module.parse_config)
    monkeypatch.setattr(rows_module, "parse_config", built)
    chosen = study(seeds=list(range(20)))
    built.reset_mock()
    sweep(chosen, tmp_path)
    assert built.call_count <= 3 * 20


def test_as_many_runs_go_on_at_a_time_as_there_are_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    assert sweep_module.runs_at_a_time(study(jobs=0)) == 8
    assert sweep_module.runs_at_a_time(study(jobs=0, base=TINY | {"threads": 3})) == 2
    assert sweep_module.runs_at_a_time(study(jobs=0, base=TINY | {"threads": 0})) == 1
    assert sweep_module.runs_at_a_time(study(jobs=5)) == 5


def test_the_seeds_of_a_row_are_one_group_of_a_report_if_the_folder_of_one_is_gone(tmp_path):
    sweep(study(seeds=[0, 1]), tmp_path)
    shutil.rmtree(next((tmp_path / "runs").iterdir()))
    sweep(study(seeds=[0, 1]), tmp_path)
    (group,) = group_runs(find_runs([tmp_path]).runs)
    assert len(group.runs) == 2


def test_a_run_has_the_place_of_its_data_if_its_folder_is_gone(tmp_path, monkeypatch):
    pretend_runs(monkeypatch, lambda config: 1.0)
    (place := tmp_path / "a b").mkdir()
    grid = {"data": "text", "data_dir": [str(place), str(tmp_path)], "clip": ["1", "2"]}
    sweep(study(grid=grid), tmp_path / "out")
    shutil.rmtree(tmp_path / "out/runs")
    found = [run.config.data_dir for run in find_runs([tmp_path / "out"]).runs]
    assert found == [place, place, tmp_path, tmp_path]


# Runs whose folders are gone count as the record of the study says.

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
    with (done / "record.json").open("a") as file:
        file.write(" " * JSON_LIMIT)  # as if it had many curves
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
    with pytest.raises(RunFolderError, match=r"cannot read the runs of .*folders are gone"):
        sweep(study(learning_rates=RATES), done)
    assert here.started == 3

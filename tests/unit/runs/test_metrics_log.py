"""Rows of metrics that can be read while a training runs, and files for TensorBoard."""

import errno
import json
import os
import shutil
from dataclasses import asdict
from io import FileIO

import pytest

from contract.small import data, mlp, sgd
from hocket import DGL, DNI, FDG, Trainer
from hocket.errors import RunFolderError
from hocket.runs import metrics_log
from hocket.runs.metrics_log import MetricsLog, cut_logs, cut_unknown_logs, log_files
from hocket.training.results.metrics import EpochResult, EvaluationResult
from hocket.training.results.rows import scalars

BATCHES = data(mlp, 6, size=2)


def logged(folder, method, *, every=1, tensorboard=False):
    """Return the rows of two epochs of 6 batches on 2 stages."""
    with MetricsLog(folder, every, tensorboard=tensorboard) as logs:
        trainer = Trainer(
            mlp(2),
            method=method,
            optimizer=sgd,
            watchers=[logs.log_event],
            gradient_error_every=4,
            on_gradient_error=logs.log_gradient_error,
        )
        trainer.fit(BATCHES, BATCHES[:1], epochs=2, on_epoch=logs.log_epoch, progress=False)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def of(rows, kind, **wanted):
    return [
        row
        for row in rows
        if row["kind"] == kind and all(row[key] == value for key, value in wanted.items())
    ]


def test_rows_say_where_and_what(tmp_path):
    rows = logged(tmp_path, FDG())
    for stage in (0, 1):
        for kind in ("backward", "update"):
            assert [row["batch"] for row in of(rows, kind, stage=stage)] == list(range(12))
    (late,) = of(rows, "backward", stage=0, batch=5)
    assert (late["tick"], late["epoch"], late["version"], late["staleness"]) == (7, 0, 5, 1)
    assert late["gradient_norm"] > 0
    assert "loss" not in late, "only the last stage sees a loss"
    (last,) = of(rows, "backward", stage=1, batch=5)
    assert last["loss"] > 0
    assert (late["last"], last["last"]) == (False, True)
    (update,) = of(rows, "update", stage=0, batch=5)
    assert update["lr"] == 0.1
    assert "staleness" not in update
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]
    (tmp_path / "learns").mkdir()
    rows = logged(tmp_path / "learns", DNI())
    assert [row["batch"] for row in of(rows, "target", stage=0)] == list(range(12))


def test_comparisons_and_epochs(tmp_path):
    rows = logged(tmp_path, FDG(), every=5)
    assert [row["batch"] for row in of(rows, "backward", stage=0)] == [0, 5, 10]
    compared = of(rows, "comparison")
    assert {(row["stage"], row["batch"]) for row in compared} == {
        (stage, batch) for stage in (0, 1) for batch in (0, 4, 8)
    }
    assert all(-1 <= row["cosine"] <= 1.0001 and row["ratio"] > 0 for row in compared)
    first, second = of(rows, "epoch")
    assert (first["number"], second["number"]) == (0, 1)
    assert first["samples"] == 12
    assert first["evaluation"]["samples"] == 2
    assert 0 <= first["evaluation"]["error"] <= 1
    assert second["staleness"][1] == 0


def read_scalars(folder):
    """Return a function of the name of a curve: its steps and its values."""
    reading = "tensorboard.backend.event_processing.event_accumulator"
    events = pytest.importorskip(reading).EventAccumulator(str(folder)).Reload()

    def curve(name):
        scalars = events.Scalars(name)
        return [scalar.step for scalar in scalars], [scalar.value for scalar in scalars]

    return curve


def test_tensorboard_files_hold_the_same_numbers(tmp_path):
    pytest.importorskip("tensorboard")
    rows = logged(tmp_path, DGL(head="mlp", depth=0), tensorboard=True)
    curve = read_scalars(tmp_path)
    losses = [row["loss"] for row in of(rows, "backward", stage=1)]
    steps, values = curve("backward/loss/stage1")
    assert values == pytest.approx(losses)
    assert steps == list(range(12))
    for name in ("backward/gradient_norm/stage0", "backward/staleness/stage0"):
        assert len(curve(name)[0]) == 12
    for name in ("update/lr/stage1", "comparison/cosine/stage0", "epoch/loss"):
        assert curve(name)[0]
    for name in ("epoch/test_loss", "epoch/test_error"):
        assert len(curve(name)[0]) == 2
    scores = [row["evaluation"] for row in of(rows, "epoch")]
    for k in (0, 1):
        assert curve(f"epoch/exit_error/stage{k}")[1] == [score["exits"][k] for score in scores]
    assert curve("epoch/ensemble_error")[1] == [score["ensemble"] for score in scores]


def test_the_numbers_of_a_row_have_those_of_its_evaluation():
    result = asdict(EvaluationResult(1.5, None, 8, metrics={"f1": 0.7}))
    epoch = dict(scalars("epoch", {"number": 0, "loss": 2.0, "evaluation": result}))
    assert epoch == {"epoch/loss": 2.0, "epoch/test_loss": 1.5, "epoch/f1": 0.7}
    within = dict(scalars("evaluation", {"updates": 5, **result}))
    assert within == {"evaluation/loss": 1.5, "evaluation/f1": 0.7}


def test_after_a_restart_tensorboards_files_hold_every_step_once(tmp_path):
    pytest.importorskip("tensorboard")

    other = tmp_path / "events.out.tfevents.1.host.metrics.stage1"

    def write(steps, after, note_at=None):
        if after:
            cut_unknown_logs(tmp_path, {*after, other.name}, tick=0, epoch=0)
        cut_logs(tmp_path, after)
        with MetricsLog(tmp_path, 1, tensorboard=True) as logs:
            for step in steps:
                logs._write_row("backward", batch=step, stage=0, loss=float(step))
                if step == note_at:
                    after = logs.written()
        return after

    other.write_text("another process's")
    at = write(range(6), {}, note_at=3)
    write(range(4, 7), at)  # which is killed before its first checkpoint
    again = write(range(4, 9), at, note_at=5)
    write(range(6, 10), again)
    assert len(list(tmp_path.glob("events*.metrics"))) == 3
    other.unlink()
    assert read_scalars(tmp_path)("backward/loss/stage0")[0] == list(range(10))
    assert {*log_files(tmp_path)} == {*tmp_path.iterdir()}, "removed by a run that begins anew"


def test_a_file_that_has_lost_rows_is_told_and_loses_half_a_row(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"kind": "epoch"}\n{"kind": "ep')
    with pytest.warns(UserWarning, match=r"metrics\.jsonl' is shorter than at its checkpoint"):
        cut_logs(tmp_path, {"metrics.jsonl": 99})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"kind": "epoch"}\n'


def test_files_that_a_checkpoint_does_not_know_are_cut_by_tick_and_epoch(tmp_path, monkeypatch):
    monkeypatch.setattr("hocket.files.LINE_LIMIT", 100)

    def rows(*places):
        return "".join(json.dumps(place) + "\n" for place in places)

    kept = rows({"tick": 1}, {"cosine": 0.5}, {"number": 0}, {"tick": 7})
    later = {
        "tick": rows({"tick": 8}, {"tick": 2}),
        "epoch": rows({"number": 1}),
        "half a row": '{"tick": 7}',
        "no row": "[]\n",
        "no JSON": "7:\n",
        "a line without end": "\0" * 200 + "\n" + rows({"tick": 1}),
    }
    for name, text in later.items():
        (tmp_path / f"metrics.{name}.jsonl").write_text(kept + text)
    (tmp_path / "metrics.jsonl").write_text(rows({"tick": 9}))
    cut_unknown_logs(tmp_path, {"metrics.jsonl"}, tick=8, epoch=1)
    assert {(tmp_path / f"metrics.{name}.jsonl").read_text() for name in later} == {kept}
    assert (tmp_path / "metrics.jsonl").read_text() == rows({"tick": 9})


@pytest.mark.filterwarnings("default")
def test_rows_that_a_full_disk_does_not_take_end_the_log_once_and_leave_whole_rows(
    tmp_path, monkeypatch
):
    class Full(FileIO):
        def write(self, row):
            if self.tell() > 150:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(row[:20])

    monkeypatch.setattr(metrics_log, "open_to_append", lambda path: Full(path, "a"))

    def write():
        with MetricsLog(tmp_path, 1, tensorboard=False) as logs:
            for number in range(9):
                logs._write_row("epoch", number=number, evaluation=None)

    with pytest.warns(UserWarning, match="No space left on device; the training goes") as told:
        write()
    assert len(told) == 1
    rows = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["number"] for row in rows] == list(range(len(rows)))
    assert 1 <= len(rows) < 9


def test_a_log_that_cannot_be_opened_is_an_error_of_its_folder(tmp_path):
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(RunFolderError, match=r"cannot write .*metrics.jsonl': it is not a reg"):
        MetricsLog(tmp_path, 1, tensorboard=False)


@pytest.mark.parametrize("action", ["delete", "rename"])
def test_a_run_folder_that_is_deleted_or_renamed_is_noticed(tmp_path, action):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    epoch = EpochResult(0, 1.0, None, 1.0, 8, (0.0,), (0,))
    with MetricsLog(run_dir, 1, tensorboard=False) as log:
        log.log_epoch(epoch)  # nothing to warn of
        shutil.rmtree(run_dir) if action == "delete" else run_dir.rename(tmp_path / "b")
        with pytest.warns(match=r"run/metrics\.jsonl' was deleted, moved or replaced"):
            log.log_epoch(epoch)

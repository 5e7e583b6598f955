"""Rows of metrics that can be read while a training runs, and files for TensorBoard."""

import json
import sys

import pytest
import torch
from torch import nn

from hocket import DGL, DNI, FDG, Trainer
from hocket.errors import OptionError
from hocket.runs.config import RunConfig
from hocket.runs.metrics_log import MetricsLog, tensorboard_writer
from hocket.runs.train import train

BATCHES = [(torch.ones(2, 3), torch.tensor([0, 1]))] * 6


def logged(folder, method, *, every=1, tensorboard=False):
    """Return the rows of two epochs of 6 batches on 2 stages."""
    torch.manual_seed(0)
    with MetricsLog(folder, every, tensorboard=tensorboard) as logs:
        trainer = Trainer(
            nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)),
            method=method,
            optimizer=lambda weights: torch.optim.SGD(weights, lr=0.1),
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


def test_there_is_a_row_for_each_backward_and_update_of_each_stage(tmp_path):
    rows = logged(tmp_path, FDG())
    for stage in (0, 1):
        for kind in ("backward", "update"):
            assert [row["batch"] for row in of(rows, kind, stage=stage)] == list(range(12))


def test_rows_say_where_and_what(tmp_path):
    rows = logged(tmp_path, FDG())
    (late,) = of(rows, "backward", stage=0, batch=5)
    assert (late["tick"], late["epoch"], late["version"], late["staleness"]) == (7, 0, 5, 1)
    assert late["gradient_norm"] > 0
    assert "loss" not in late, "only the last stage sees a loss"
    (last,) = of(rows, "backward", stage=1, batch=5)
    assert last["loss"] > 0
    (update,) = of(rows, "update", stage=0, batch=5)
    assert update["lr"] == 0.1
    assert "staleness" not in update


def test_every_nth_batch(tmp_path):
    rows = logged(tmp_path, FDG(), every=5)
    assert [row["batch"] for row in of(rows, "backward", stage=0)] == [0, 5, 10]


def test_comparisons_and_epochs(tmp_path):
    rows = logged(tmp_path, FDG())
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


def test_a_signal_that_learns_leaves_rows_of_its_targets(tmp_path):
    rows = logged(tmp_path, DNI())
    assert [row["batch"] for row in of(rows, "target", stage=0)] == list(range(12))


def test_rows_are_there_before_the_end(tmp_path):
    with MetricsLog(tmp_path, 1, tensorboard=False) as logs:
        logs._write_row("epoch", number=0, evaluation=None)
        assert json.loads((tmp_path / "metrics.jsonl").read_text())["number"] == 0


def test_tensorboard_files_hold_the_same_numbers(tmp_path):
    reading = "tensorboard.backend.event_processing.event_accumulator"
    EventAccumulator = pytest.importorskip(reading).EventAccumulator
    rows = logged(tmp_path, FDG(), tensorboard=True)
    (file,) = tmp_path.glob("events.out.tfevents*")
    events = EventAccumulator(str(file)).Reload()
    losses = [row["loss"] for row in of(rows, "backward", stage=1)]
    scalars = events.Scalars("backward/loss/stage1")
    assert [s.value for s in scalars] == pytest.approx(losses)
    assert [s.step for s in scalars] == list(range(12))
    assert {
        "backward/gradient_norm/stage0",
        "backward/staleness/stage0",
        "update/lr/stage1",
        "comparison/cosine/stage0",
        "epoch/loss",
        "epoch/test_error",
    } <= set(events.Tags()["scalars"])


def test_the_errors_of_exits_are_logged(tmp_path):
    reading = "tensorboard.backend.event_processing.event_accumulator"
    EventAccumulator = pytest.importorskip(reading).EventAccumulator
    rows = logged(tmp_path, DGL(head="mlp", depth=0), tensorboard=True)
    scores = [row["evaluation"] for row in of(rows, "epoch")]
    (file,) = tmp_path.glob("events.out.tfevents*")
    events = EventAccumulator(str(file)).Reload()
    for k in (0, 1):
        logged_errors = [s.value for s in events.Scalars(f"epoch/exit_error/stage{k}")]
        assert logged_errors == [score["exits"][k] for score in scores]
    ensemble = [s.value for s in events.Scalars("epoch/ensemble_error")]
    assert ensemble == [score["ensemble"] for score in scores]


def test_no_tensorboard_file_unless_asked_for(tmp_path):
    logged(tmp_path, FDG())
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_without_the_package_it_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    # None in the table of modules makes an import fail as if the package were not there.
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(OptionError, match=r"pip install 'hocket\[tensorboard\]'"):
        tensorboard_writer()
    with pytest.raises(
        OptionError, match="needs the package tensorboard, which is not installed"
    ):
        train(RunConfig(tensorboard=True, run_dir=tmp_path / "run"))
    assert list(tmp_path.iterdir()) == []


def test_after_a_restart_tensorboards_files_hold_every_step_once(tmp_path):
    reading = "tensorboard.backend.event_processing.event_accumulator"
    EventAccumulator = pytest.importorskip(reading).EventAccumulator

    def write(steps, after=None, note_at=None):
        with MetricsLog(tmp_path, 1, tensorboard=True, after=after) as logs:
            for step in steps:
                logs._write_row("backward", batch=step, stage=0, loss=float(step))
                if step == note_at:
                    after = logs.written()
        return after

    (tmp_path / "events.out.tfevents.1.host.metrics.stage1").write_text("another process's")
    at = write(range(6), note_at=3)
    again = write(range(4, 9), at, note_at=5)
    write(range(6, 10), again)
    assert len(list(tmp_path.glob("events*.metrics"))) == 3
    assert (tmp_path / "events.out.tfevents.1.host.metrics.stage1").exists()
    (tmp_path / "events.out.tfevents.1.host.metrics.stage1").unlink()
    scalars = EventAccumulator(str(tmp_path)).Reload().Scalars("backward/loss/stage0")
    assert [scalar.step for scalar in scalars] == list(range(10))
    write([0])
    assert len(list(tmp_path.glob("events*"))) == 1, "a run that begins anew"

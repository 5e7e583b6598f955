"""Times to a loss: one small measurement, its continuation, its table and its refusals."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from benchmarks.harness import updates_to_target
from benchmarks.harness.balance import Balancer
from benchmarks.harness.link_times import TimedRow
from benchmarks.harness.record import Record
from benchmarks.harness.updates_to_target import shorten_text
from benchmarks.peers import build_baseline
from benchmarks.report.render import render
from benchmarks.target import TargetMeasurement, TargetSettings, measure_target
from hocket.errors import OptionError
from unit.benchmarks.small_workloads import exact
from unit.lab.studies.in_process import HereProcess

pytestmark = pytest.mark.usefixtures("row_server", "studies_here")
ROWS = ("bp-all", "local-sgd:steps=2", "diloco:steps=4", "paci:accumulate=2,codec=bf16+predict")
SETTINGS = partial(
    TargetSettings,
    rows=ROWS,
    links=("none",),
    target=2.0,
    updates=20,
    every=5,
    rates=(0.003, 0.01),
    warmup=2,
    network="mlp:hidden=[32,32]",
    data="digits",
    characters=None,
    optimizer="AdamW",
    jobs=1,
    repetitions=2,
    seconds=0.02,
)


def pretend_times(_, rows, **__):
    """Return times that grow from row to row, in the place of processes."""
    return {
        one.row: {"update_s": 0.1 * number, "min_s": 0.05, "max_s": 9.0}
        for number, one in enumerate(rows, start=1)
    }


def test_a_stopped_measurement_goes_on_and_multiplies_updates_by_seconds(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("benchmarks.target.time_over_link", pretend_times)
    trained = updates_to_target.train_replicas
    calls = []

    def stop_at_the_second(*arguments):
        calls.append(arguments[1])
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return trained(*arguments)

    monkeypatch.setattr(updates_to_target, "train_replicas", stop_at_the_second)
    settings = SETTINGS(out=tmp_path)
    assert measure_target(settings) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert not (tmp_path / "record.json").exists()
    assert measure_target(settings) == 0
    assert len(calls) == 5  # four trainings of replicas, one of which was begun twice
    record = Record.read(tmp_path)
    assert [row["row"] for row in record.rows] == [
        "bp-all", "local-sgd steps=2", "diloco steps=4", "paci accumulate=2 codec=bf16+predict",
    ]  # fmt: skip
    bp, *others = record.rows
    assert bp["synchronous"]
    assert not any(row["synchronous"] for row in others)
    for row in record.rows:
        assert [point["updates"] for point in row["curve"]] == [5, 10, 15, 20]
        first = next(p["updates"] for p in row["curve"] if p["test_loss"] <= 2.0)
        assert row["updates"] == first
        assert row["seconds"] == first * row["update_s"]
        assert row["beside_best"] == row["seconds"] / bp["seconds"]
    render(tmp_path)
    shown = (tmp_path / "README.md").read_text()
    assert shown.index("**Link: no limit**") < shown.index("| diloco steps=4 |")
    assert (tmp_path / "target.svg").is_file()
    # What is there is measured no more, and other settings do not mix with it.
    monkeypatch.setattr("benchmarks.target.time_over_link", None)
    assert measure_target(settings) == 0
    assert len(calls) == 5
    with pytest.raises(OptionError, match=r"other settings \(every 5 != 4\); choose another"):
        measure_target(SETTINGS(out=tmp_path, every=4))
    with pytest.raises(OptionError, match="cannot confirm 'bp': no row of this name has reach"):
        measure_target(SETTINGS(out=tmp_path, confirm=("bp",)))


def test_seconds_are_those_of_processes_and_a_real_run_confirms_them(tmp_path):
    rows = ("bp-all", "diloco:steps=4", "paci:accumulate=2")
    chosen = {"rates": (0.01,), "rows": rows, "confirm": rows, "seconds": 0.01}
    assert measure_target(SETTINGS(out=tmp_path, repetitions=1, **chosen)) == 0
    record = Record.read(tmp_path)
    for row in record.rows:
        assert 0 < row["min_s"] <= row["update_s"] <= row["max_s"]
        ratio = row["confirmed"]["seconds"] / row["seconds"]
        assert row["confirmed"]["beside_product"] == ratio
    bp, diloco, paci = record.rows
    for row in (bp, diloco):  # at whose evaluations no batch is in flight
        reached = next(p for p in row["curve"] if p["updates"] == row["updates"])
        found = row["confirmed"]["test_loss"]
        assert found == pytest.approx(reached["test_loss"], rel=1e-6)
    assert paci["confirmed"]["test_loss"] <= 2.0
    # Without a row to confirm, the run that has been is still there.
    unconfirmed = SETTINGS(out=tmp_path, repetitions=1, **chosen | {"confirm": ()})
    assert measure_target(unconfirmed) == 0
    assert Record.read(tmp_path).rows == record.rows
    render(tmp_path)
    shown = (tmp_path / "README.md").read_text()
    took = f"{paci['confirmed']['seconds']:.0f} s"
    assert f"One run of paci accumulate=2 (link: no limit) took {took}" in shown


def test_periods_are_those_of_updates_and_outer_steps():
    work = exact()
    ticks = {}
    for row in ("ddp", "diloco:steps=8", "paci:accumulate=4", "hocket-gpipe:accumulate=2"):
        timed = TimedRow(row, build_baseline(row, work, Balancer(work)), work)
        ticks[row] = (timed.ticks, timed.period)
    assert list(ticks.values()) == [(1, 1), (1, 8), (4, 4), (2, 2)]


def test_the_beginning_of_a_text_is_used(tmp_path):
    (tmp_path / "all.txt").write_text("abcdef")
    place = shorten_text(tmp_path, 3, tmp_path / "out")
    assert Path(place or "").read_text() == "abc"
    assert shorten_text(tmp_path, None, tmp_path) == str(tmp_path)
    assert shorten_text(None, 3, tmp_path) is None
    (tmp_path / "empty").mkdir()
    with pytest.raises(OptionError, match=r"there is no text in .*empty'; give a \.txt file"):
        shorten_text(tmp_path / "empty", 3, tmp_path)


def test_trainings_that_somebody_stopped_are_no_results(tmp_path, monkeypatch):
    def stop(self, *_):
        self.returncode = -signal.SIGTERM

    monkeypatch.setattr(HereProcess, "__init__", stop)
    assert measure_target(SETTINGS(out=tmp_path, rows=("bp",))) == 130
    assert not (tmp_path / "record.json").exists()


def test_without_warm_up_the_rate_is_that_of_the_row(tmp_path):
    trainings = TargetMeasurement(SETTINGS(out=tmp_path, warmup=0, rows=("bp",))).trainings
    config = trainings.config("bp", 0.01)
    assert config.scheduler == "none"
    assert trainings.options("fdg:checksum=false")["method"] == "fdg"

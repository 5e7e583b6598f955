"""Times to a loss: one small measurement, its continuation, its table and its refusals."""

import signal
from functools import partial

import pytest

from benchmarks.harness.balance import Balancer
from benchmarks.harness.link_times import TimedRow
from benchmarks.harness.record import Record
from benchmarks.harness.updates_to_target import best_rate, stays_below
from benchmarks.peers.rows import build_baseline
from benchmarks.report.goals import target_goals
from benchmarks.report.pictures import draw_target
from benchmarks.report.render import render
from benchmarks.report.target import short_target_table
from benchmarks.target import TargetMeasurement, TargetSettings, measure_target
from hocket.errors import CutError, OptionError
from unit.benchmarks.small_workloads import exact
from unit.lab.studies.in_process import HereProcess

pytestmark = pytest.mark.usefixtures("row_server", "studies_here")
PACI = "paci:accumulate=2+predict"
ROWS = ("bp", "1f1b:microbatches=2", "local-sgd:every=2", "diloco:every=4", PACI)
SETTINGS = partial(
    TargetSettings,
    rows=ROWS,
    links=("none",),
    machines=(3,),
    target=2.0,
    updates=20,
    every=5,
    rates=(0.003, 0.01),
    most_rates=2,
    warmup=2,
    seeds=(0,),
    network="mlp:hidden=[32,32]",
    data="digits",
    batch=16,
    optimizer="AdamW",
    jobs=1,
    repetitions=2,
    seconds=0.02,
)


def pretend_times(_, rows, **__):
    """Return times that grow from row to row, instead of those of processes."""
    return {
        one.row: {
            "update_s": 0.1 * number,
            "min_s": 0.05,
            "max_s": 9.0,
            "peak_mib": [10.0] * one.baseline.processes,
            "sent_mib": 2.5,
        }
        for number, one in enumerate(rows, start=1)
    }


def pretend_forecasts(rows, links, cuts, _):
    """Return a second an update for each machine, instead of a rehearsal."""
    return [
        {"row": row, "link": link, "update_s": 1.0 + len(cuts), "peak_mib": [5.0]}
        for row in ("ddp", *rows)
        for link in links
    ]


def test_a_stopped_measurement_goes_on_and_multiplies_updates_by_seconds(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("benchmarks.target.time_over_link", pretend_times)
    monkeypatch.setattr("benchmarks.target.forecast_updates", pretend_forecasts)
    begin, calls = HereProcess.__init__, []

    def stop_the_second(self, *arguments, **options):
        calls.append(arguments)
        if len(calls) == 2:
            self.returncode = -signal.SIGTERM
        else:
            begin(self, *arguments, **options)

    monkeypatch.setattr(HereProcess, "__init__", stop_the_second)
    settings = SETTINGS(out=tmp_path)
    assert measure_target(settings) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert measure_target(SETTINGS(out=tmp_path, only_train=True)) == 0
    assert not (tmp_path / "record.json").exists()
    assert measure_target(settings) == 0
    begun = len(calls)
    record = Record.read(tmp_path)
    timed, forecast = record.rows[: len(ROWS)], record.rows[len(ROWS) :]
    assert [(row["row"], row["machines"], row["decoupled"]) for row in timed] == [
        ("bp", 1, False), ("1f1b microbatches=2", 2, False), ("local-sgd every=2", 2, False),
        ("diloco every=4", 2, False), ("paci accumulate=2+predict", 2, True),
    ]  # fmt: skip
    assert timed[1]["curve"] == timed[0]["curve"] != timed[4]["curve"]
    for row in timed:
        every = {"local-sgd every=2": 6, "diloco every=4": 8}.get(row["row"], 5)
        wanted = [*range(every, 20, every), 20]
        assert [point["updates"] for point in row["curve"]] == wanted
        assert row["reached"] == [stays_below(row["curve"], 2.0)] == [row["updates"]]
        assert row["seconds"] == row["updates"] * row["update_s"]
        assert row["final_loss"] == row["curve"][-1]["test_loss"]
    assert [(row["row"], row["machines"], row["update_s"]) for row in forecast] == [
        (name, machines, float(machines))
        for machines in (2, 3)
        for name in ("ddp", "paci accumulate=2+predict")
    ]
    # Three stages of the method are another training, data parallelism is none.
    curves = [row["curve"] for row in forecast]
    assert curves[0] == curves[2] == timed[0]["curve"]
    assert curves[1] == timed[4]["curve"] != curves[3]
    render(tmp_path)
    shown = (tmp_path / "README.md").read_text()
    assert shown.index("**Link: no limit**") < shown.index("| diloco every=4 |")
    assert "| at most 0.58 |" in shown
    assert (tmp_path / "target.svg").is_file()
    assert short_target_table(record).splitlines()[0].endswith(" | no limit |")
    # Lines do not depend on the order in which numbers of machines were given.
    (axes,) = draw_target(record.with_rows(record.rows[::-1])).axes
    numbers = [list(line.get_xdata()) for line in axes.lines]
    assert [2, 3] in numbers
    assert [3, 2] not in numbers
    # The best method is among those that are forecast, and each has its colour.
    many = [forecast[0] | {"row": f"row {n}"} for n in range(11)]
    (legend,) = draw_target(record.with_rows([*timed[:2], *many, timed[4]])).legends
    shown = [text.get_text() for text in legend.get_texts()]
    assert shown == [*(row["row"] for row in many), timed[4]["row"]]
    assert len({line.get_color() for line in legend.get_lines()}) == 12
    # What is there is measured no more, and other settings do not mix with it.
    monkeypatch.setattr("benchmarks.target.time_over_link", None)
    monkeypatch.setattr("benchmarks.target.forecast_updates", None)
    assert measure_target(settings) == 0
    assert len(calls) == begun
    with pytest.raises(OptionError, match=r"other settings \(every 5 != 4\); choose another"):
        measure_target(SETTINGS(out=tmp_path, every=4))


def test_times_and_forecasts_of_other_code_are_made_again(tmp_path, monkeypatch):
    made = []
    for name in ("time_over_link", "forecast_updates"):
        monkeypatch.setattr(f"benchmarks.target.{name}", lambda *words, **_: made.append(words))
    for code in ("old", "old", "new"):
        monkeypatch.setattr("benchmarks.target.source_digest", partial(str, code))
        measurement = TargetMeasurement(SETTINGS(out=tmp_path))
        measurement._times("none")
        measurement._forecasts(2)
    assert len(made) == 2 * 2


def test_thorough_rows_alone_try_all_rates_and_have_all_seeds(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.target.time_over_link", pretend_times)
    monkeypatch.setattr("benchmarks.target.forecast_updates", pretend_forecasts)
    own = {"rates": (0.01, 0.02), "most_rates": 2, "seeds": (0, 1), "machines": ()}
    settings = SETTINGS(out=tmp_path, thorough=(ROWS[-1],), scaled=(ROWS[-1],), **own)
    assert measure_target(settings) == 0
    record = Record.read(tmp_path)
    counts = {row["row"]: len(row["reached"]) for row in record.rows[: len(ROWS)]}
    assert counts == {
        "bp": 2, "1f1b microbatches=2": 2, "local-sgd every=2": 1, "diloco every=4": 1,
        "paci accumulate=2+predict": 2,
    }  # fmt: skip
    assert {row["learning_rate"] for row in record.rows if len(row["reached"]) == 1} == {0.01}
    assert len([*(tmp_path / "trainings/2-machines/methods/runs").iterdir()]) == 2 * 3 + 2
    assert "seeds: 0, 1; all trainings but bp, paci:acc" in short_target_table(record)
    with pytest.raises(OptionError, match=r"thorough has 'dgl'"):
        SETTINGS(out=tmp_path, thorough=("dgl",))


def test_processes_are_timed_with_their_memory_and_forecasts_are_made(tmp_path):
    codec = "paci:accumulate=2,codec=int8+predict"
    rows = ("bp", "paci:accumulate=2,extra_delay=1+predict", "dgl:checksum=false")
    own = {"rows": rows, "scaled": (codec, *rows[:0:-1]), "machines": (), "rates": (0.01,)}
    assert measure_target(SETTINGS(out=tmp_path, most_rates=1, repetitions=1, **own)) == 0
    record = Record.read(tmp_path)
    timed, forecast = record.rows[:3], record.rows[3:]
    for row, machines in zip(timed, (1, 2, 2), strict=True):
        assert 0 < row["min_s"] <= row["update_s"] <= row["max_s"]
        assert len(row["peak_mib"]) == row["machines"] == machines
    alone = [(row["row"], row["machines"]) for row in forecast[:3]]
    assert alone == [("ddp", 2), ("gpipe", 2), ("bp", 1)]
    further = [timed[2]["row"], "paci accumulate=2 codec=int8+predict", timed[1]["row"]]
    assert [row["row"] for row in forecast[3:]] == further
    assert all(min(row["final_loss"], row["update_s"]) > 0 for row in forecast)
    assert [len(row["peak_mib"]) for row in forecast] == [0, 0, 0, 2, 2, 2]


def test_the_best_rate_lies_between_others_and_other_seeds_take_it(tmp_path):
    measurement = TargetMeasurement(
        SETTINGS(out=tmp_path, rows=("bp",), rates=(0.01, 0.02), most_rates=9, seeds=(0, 3))
    )  # fmt: skip
    (row,) = measurement.train()[2].values()
    assert not row["at_edge"]
    assert len(row["reached"]) == 2
    tried = measurement.trainings(2).search(["bp"], (0.01, 0.02), 9, 0)["bp"]
    assert len(tried) > 2
    assert row["learning_rate"] == best_rate(tried, 20)
    assert min(tried) < row["learning_rate"] < max(tried)
    cut_short = {0.1: tried[0.01][:2], 0.2: tried[0.01]}
    assert best_rate(cut_short, 20) == 0.2


def test_more_machines_than_layers_are_refused_before_anything_is_trained(tmp_path):
    with pytest.raises(CutError, match="into 4 stages: it has 3 layers"):
        TargetMeasurement(SETTINGS(out=tmp_path, machines=(3, 4))).train()
    assert not (tmp_path / "trainings").exists()


def test_goals_are_judged_over_the_best_row_of_each_kind():
    def row(name, seconds, mib, loss, *, decoupled=False):
        values = {"row": name, "seconds": seconds, "peak_mib": [mib, 1], "final_loss": loss}
        return values | {"decoupled": decoupled}

    rows = [
        row("bp", 100, 9, 1.5),
        row("1f1b microbatches=4", 70, 5, 1.5),
        row("hocket-1f1b accumulate=4", 60, 5, 1.5),
        row("diloco every=64", 55, 10, 1.6),
        row("diloco every=16", None, 10, 1.6),
        row("paci", 57, 5, 1.52, decoupled=True),
        row("dgl", 90, 5, 1.5, decoupled=True),
    ]
    cells = [line.split(" | ") for line in target_goals(rows).splitlines()[2:]]
    assert [(found, judged.rstrip(" |")) for _, _, found, judged in cells] == [
        ("0.570", "met"), ("2.000", "missed"), ("0.950", "missed"), ("1.036", "missed"),
        ("0.500", "met"),
    ]  # fmt: skip
    assert "missed" in target_goals(rows[:5])
    further = [
        row("gpipe", 50, 5, 1.5) | {"machines": 6},
        *(one | {"machines": 6, "seconds": 28} for one in rows[-2:]),
        row("gpipe", 10, 5, 1.5) | {"machines": 3},
    ]
    (*_, last) = target_goals(rows, further).splitlines()
    assert "paci on 6 machines" in last
    assert "| at most 0.60 | 0.560 | met |" in last
    never = target_goals([rows[0], rows[4], rows[5]]).splitlines()[-2:]
    assert "diloco every=16, which does not come to the loss" in never[0]
    assert [line.split(" | ")[2:] for line in never] == [
        ["-", "not judged |"],
        ["0.500", "met |"],
    ]
    diverged = target_goals([row("bp", None, 9, None), rows[5]])
    assert "bp, which does not come to the loss | at most 0.58 | - | not judged" in diverged


def test_periods_are_those_of_updates_and_outer_steps():
    work = exact()
    rows = ("ddp", "diloco:every=8", "paci:accumulate=4", "hocket-gpipe:accumulate=2")
    timed = [TimedRow(row, build_baseline(row, work, Balancer(work)), work) for row in rows]
    assert [(one.ticks, one.period) for one in timed] == [(1, 1), (1, 8), (4, 4), (2, 2)]


def test_the_rate_of_a_row_rises_and_falls(tmp_path):
    trainings = TargetMeasurement(SETTINGS(out=tmp_path)).trainings(2)
    base = trainings.base
    assert (base["warmup_updates"], base["scheduler"]) == (2, "CosineAnnealingLR:T_max=18")
    assert trainings.options("fdg:checksum=false")["method"] == "fdg"

"""Progress of a study: lines for a log, bars for a terminal."""

import json
from types import SimpleNamespace

import pytest

from hocket_lab.studies.curve import Point
from hocket_lab.studies.progress import SweepProgress
from hocket_lab.studies.results import RunOutcome, RunSource
from hocket_lab.studies.rows import Row
from hocket_lab.studies.run_folder import RunResult

POINT = Point(4, 4, 32, 1.25, 2.0, 1.5, 0.5)


def run(seed=0, **options):
    return Row("fdg", options, ()).run(None, seed)


def ended(seed):
    return RunOutcome(run(seed), RunResult("finished"), (POINT,), (), RunSource(), 1.5)


def test_a_log_gets_a_line_for_each_run_unless_silence_was_asked_for(capsys):
    for shown in (False, True):
        with SweepProgress(4, 1, "test_loss", shown=shown) as bar:
            bar.end(ended(1), run(1), 4)
            diverged = RunResult("diverged", "nan\nhelp")
            lost = RunOutcome(run(2), diverged, (), (), RunSource(), float("inf"))
            bar.end(lost, run(2), 4)
            bar.end(None, run(3), 4)
            bar.update([])
        captured = capsys.readouterr()
        assert captured.out == "", "standard output is for results"
        assert captured.err.splitlines() == shown * [
            "1 of 4 runs have ended before",
            "[2/4] fdg, seed 1: test_loss 1.5000 after 1.2 s",
            "[3/4] fdg, seed 2: diverged: nan",
            "stopped: fdg, seed 3",
        ]


@pytest.mark.parametrize(
    ("options", "length", "share"),
    [
        ({"updates": 40}, 0, "25%"),
        ({"updates": 20, "method": "adl:accumulate=2"}, 0, "25%"),
        ({"epochs": 2, "batch_size": 10}, 20, "25%"),
        ({"epochs": 2}, 0, "0%"),
    ],
    ids=["updates", "accumulated", "epochs", "first epoch"],
)
def test_a_terminal_shows_how_far_the_others_are(
    capsys, monkeypatch, tmp_path, options, length, share
):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes standard error for a terminal
    monkeypatch.setenv("COLUMNS", "150")
    rows = [{"kind": "epoch", "samples": 10 * length}] if length else []
    rows.append({"kind": "backward", "batch": 9, "loss": 1.25})
    text = "".join(json.dumps(row) + "\n" for row in [{"kind": "other"}, *rows])
    (tmp_path / "metrics.jsonl").write_text(text + '{"kind": "backw')  # being written
    running = SimpleNamespace(run=run(7, **options), folder=tmp_path)
    with SweepProgress(2, 0, "test_loss", shown=True) as bar:
        bar.update([running])
        bar.update([running])
        shown = capsys.readouterr().err
        bar.end(ended(7), running.run, 2)
    assert "fdg, seed 7" in shown
    assert "loss 1.250" in shown
    assert share in shown
    assert "0 of 2" in shown
    assert "[1/2] fdg, seed 7: test_loss 1.5000" in capsys.readouterr().err


def test_runs_on_a_part_of_the_data_do_not_tell_how_long_others_are(tmp_path):
    rows = [{"kind": "epoch", "samples": 640}, {"kind": "backward", "batch": 4, "loss": 1.0}]
    shares = []
    with SweepProgress(2, 0, "test_loss", shown=False) as bar:
        for number, hold_out in enumerate((0.5, 0.0)):
            folder = tmp_path / str(number)
            folder.mkdir()
            text = "".join(json.dumps(row) + "\n" for row in [{"kind": "other"}, *rows])
            (folder / "metrics.jsonl").write_text(text)
            options = {"epochs": 1, "batch_size": 64, "hold_out": hold_out}
            shares.append(bar._share(SimpleNamespace(run=run(**options), folder=folder))[0])
            rows[0]["samples"] *= 2
    assert shares == [0.5, 0.25]

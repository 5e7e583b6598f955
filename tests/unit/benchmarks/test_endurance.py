"""A short measurement of what many ticks leave behind."""

from pathlib import Path

import pytest

from benchmarks.endurance import CASES, EnduranceSettings, measure_endurance
from benchmarks.harness.record import Record
from benchmarks.report.render import render
from hocket.errors import HocketError, OptionError

ROWS = ("fdg, 2 stages, 1 process", "fdg, 2 stages, 2 processes")


def test_each_process_counts_while_it_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measure_endurance(EnduranceSettings(out=tmp_path, rows=ROWS, ticks=100, samples=4))
    rows = Record.read(tmp_path).rows
    assert [row["row"] for row in rows] == list(ROWS)
    for row in rows:
        assert row["ticks"] == 100
        assert [len(row[key]) for key in ("memory_mib", "threads", "descriptors")] == [4, 4, 4]
        assert min(row["memory_mib"]) > 0
    assert f"{ROWS[0]}: " in capsys.readouterr().err
    render(tmp_path)
    assert (tmp_path / "endurance.svg").is_file()
    assert f"| {ROWS[0]} | 100 |" in (tmp_path / "README.md").read_text()


def test_a_training_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.endurance.launch", lambda *_, **__: 3)
    with pytest.raises(HocketError, match=r"EnduranceCase\(method='fdg'.* ended with 3"):
        measure_endurance(EnduranceSettings(out=tmp_path, rows=ROWS[:1]))


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(OptionError, match=r"(?s)samples is 1; give 2.*unknown row 'fdg'"):
        EnduranceSettings(rows=("fdg",), samples=1)
    assert all(0 < case.share <= 1 for case in CASES.values())

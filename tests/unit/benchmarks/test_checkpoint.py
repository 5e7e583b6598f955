from pathlib import Path

import pytest

from benchmarks.checkpoint import ROWS, CheckpointSettings, measure_checkpoint
from benchmarks.harness.record import Record
from benchmarks.report.render import record_table, render
from hocket.errors import OptionError

TINY = {"pairs": 2, "steps": 2, "batch": 8, "network": "mlp", "shape": (64,)}


def test_the_record_has_every_row_and_what_was_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = (*ROWS[:2], "every 2")
    measure_checkpoint(CheckpointSettings(out=tmp_path, rows=rows, **TINY))
    record = Record.read(tmp_path)
    assert [row["row"] for row in record.rows] == list(rows)
    assert all(row["ratio"] > 0 for row in record.rows)
    none, kept, some = record.rows
    assert [none["checkpoints"], kept["checkpoints"]] == [0, 0]
    assert none["still_s"] is none["save_s"] is none["mib"] is None
    # Two blocks of two steps, each after one that is not timed.
    assert some["checkpoints"] == 3
    assert 0 < some["still_s"] < 60
    assert some["save_s"] > 0
    assert some["mib"] > 0
    assert "[3/3] every 2: " in capsys.readouterr().err


def test_the_table_says_how_long_ticks_stand_still(tmp_path: Path) -> None:
    measure_checkpoint(CheckpointSettings(out=tmp_path, rows=("plain", "every 1"), **TINY))
    text = record_table(Record.read(tmp_path))
    assert "| ticks stand still, ms |" in text
    assert "mlp on batches of 8, fdg on 2 stages in one process" in text
    (line,) = (line for line in text.splitlines() if line.startswith("| plain |"))
    assert line.endswith("| 0 | - | - | - |")
    render(tmp_path)
    assert (tmp_path / "checkpoint.svg").exists()


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(OptionError) as caught:
        CheckpointSettings(rows=("every 0", "never"), pairs=0)
    for words in ("pairs is 0; give 1 or more", "row 'every 0'; use 'plain'", "row 'never'"):
        assert words in str(caught.value)

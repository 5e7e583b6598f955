from pathlib import Path

import pytest

from benchmarks.checkpoint import CheckpointSettings, measure_checkpoint
from benchmarks.harness.record import Record
from benchmarks.report.render import record_table

TINY = {"pairs": 2, "steps": 2, "batch": 8, "network": "mlp", "shape": (64,)}


def test_the_record_has_every_row_and_what_was_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measure_checkpoint(CheckpointSettings(out=tmp_path, every=(2,), **TINY))
    record = Record.read(tmp_path)
    assert [row["row"] for row in record.rows] == ["plain", "resumable", "every 2"]
    assert all(row["ratio"] > 0 for row in record.rows)
    none, kept, some = record.rows
    assert [none["checkpoints"], kept["checkpoints"]] == [0, 0]
    assert none["still_s"] is none["save_s"] is none["mib"] is None
    # Two blocks of two steps, each after one that is not timed.
    assert some["checkpoints"] == 3
    assert 0 < some["still_s"] < 60
    assert some["save_s"] > 0
    assert some["mib"] > 0
    assert "every 2: " in capsys.readouterr().err
    (line,) = (x for x in record_table(record).splitlines() if x.startswith("| plain |"))
    assert line.endswith("| 0 | - | - | - |")

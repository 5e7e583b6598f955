"""The hours of published trainings, computed from a few steps."""

from pathlib import Path

import pytest

from benchmarks.harness.record import Record
from benchmarks.published import PublishedSettings, measure_published
from benchmarks.report.render import render
from hocket.errors import OptionError


def test_hours_follow_from_timed_steps(tmp_path: Path) -> None:
    measure_published(PublishedSettings(out=tmp_path, rows=("resnet20",), steps=1))
    (row,) = Record.read(tmp_path).rows
    assert row["hours"] == pytest.approx(row["sample_s"] * 50_000 * 300 / 3600)
    assert row["all_hours"] == pytest.approx(row["hours"] * 3 * 3)  # rows, and runs of each
    render(tmp_path)
    assert "| resnet20 | FDG (1906.09108), table 2 |" in (tmp_path / "README.md").read_text()


def test_settings_out_of_range_are_refused() -> None:
    text = r"(?s)steps is 0; give 1.*unknown network 'mlp'"
    with pytest.raises(OptionError, match=text):
        PublishedSettings(rows=("mlp",), steps=0)

"""Several numbers of stages: measured and computed speeds."""

from pathlib import Path

import pytest

from benchmarks.harness.record import Record
from benchmarks.report.render import render
from benchmarks.stages import StagesSettings, measure_stages, slowest_tick_s
from hocket.errors import OptionError
from hocket.timeline import Span, Timeline


def measure(out: Path, **options: object) -> Record:
    settings = StagesSettings(  # type: ignore[arg-type]
        **{"out": out, "network": "mlp:hidden=[64,64,64]", "shape": (8,), "batch": 64}
        | {"channels_last": False, "repetitions": 2, "steps": 3}
        | options
    )
    measure_stages(settings)
    return Record.read(out)


def test_the_record_has_a_row_for_each_method_and_number_of_stages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = measure(tmp_path, rows=["fdg", "ddg"], counts=[2, 3])
    assert [(row["stages"], row["row"]) for row in record.rows] == [
        (2, "fdg"), (2, "ddg"), (3, "fdg"), (3, "ddg"),
    ]  # fmt: skip
    for row in record.rows:
        count = row["stages"]
        assert len(row["choices"]["cuts"]) == count - 1
        assert row["ticks_per_s"] > 0
        for busy, sends, waits in zip(
            row["busy"], row["communication"], row["waiting"], strict=True
        ):
            assert 0 < busy + sends + waits <= 1
        assert len(row["busy"]) == len(row["computed_waiting"]) == count
        assert row["computed_speed_up"] > 0  # of steps of a millisecond: any number
    assert "3 stages, ddg: " in capsys.readouterr().err
    render(tmp_path)
    assert "Computed, not measured" in (tmp_path / "README.md").read_text()
    assert (tmp_path / "stages.svg").exists()


def test_a_tick_is_as_long_as_that_of_the_slowest_stage() -> None:
    """A stage before it that waits for no gradient runs ahead, and does not count."""
    quick = [Span(0, "F", t, t, start_s=t, end_s=t + 1) for t in range(6)]
    slow = [Span(1, "F", t, t, start_s=1 + 3 * t, end_s=4 + 3 * t) for t in range(6)]
    assert slowest_tick_s(Timeline((*quick, *slow)), ticks=4) == 3


def test_all_numbers_out_of_range_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(
        OptionError,
        match=r"(?s)steps is 1; give 2.*a count is 1; give 2.*row 'ddp' is no method",
    ):
        measure(tmp_path, rows=["fdg", "ddp"], counts=[1], steps=1)
    with pytest.raises(OptionError, match="the row 'gpipe' is no method with stages"):
        measure(tmp_path, rows=["gpipe"])
    with pytest.raises(OptionError, match=r"(?s)rows is empty; give.*counts is empty"):
        measure(tmp_path, rows=[], counts=[])
    assert list(tmp_path.iterdir()) == []

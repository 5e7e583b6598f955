"""A short measurement of start-up times."""

from pathlib import Path

import pytest

from benchmarks import startup as module
from benchmarks.harness.record import Record
from benchmarks.report.render import render
from benchmarks.startup import BASE, FIRST_TICK, StartupSettings, measure_startup
from hocket.errors import HocketError, OptionError


def test_every_command_is_compared_with_importing_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        module, "COMMANDS", module.COMMANDS | {BASE: ("-c", "sum(range(10**6))")}
    )
    measure_startup(StartupSettings(out=tmp_path, rows=("hocket --version",), runs=2))
    record = Record.read(tmp_path)
    base, version = record.rows
    assert (base["row"], version["row"]) == (BASE, "hocket --version")
    assert base["ratio"] == base["cpu_ratio"] == 1
    for row in record.rows:
        assert row["ratio_min"] <= row["ratio"] <= row["ratio_max"]
        assert row["cpu_s"] > 0
        assert 0 < row["wall_s"] < 60
    assert "hocket --version: " in capsys.readouterr().err
    render(tmp_path)
    assert (tmp_path / "startup.svg").is_file()
    assert "| hocket --version |" in (tmp_path / "README.md").read_text()


def test_a_training_ends_after_its_first_action(tmp_path: Path) -> None:
    cost = module.run_command(FIRST_TICK, threads=1)
    assert cost.cpu_s > 0
    assert cost.wall_s < 60


def test_a_command_that_fails_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMMANDS", {BASE: ("-c", "import sys; sys.exit('no torch')")})
    with pytest.raises(HocketError, match="'import torch' ended with 1: no torch"):
        module.run_command(BASE, threads=1)


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(OptionError, match=r"(?s)runs is 0; give 1.*unknown command 'hocket'"):
        StartupSettings(rows=("hocket",), runs=0)

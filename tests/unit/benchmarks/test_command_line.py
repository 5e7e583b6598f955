"""``python -m benchmarks``: every measurement is a command named like its file."""

from pathlib import Path

import pytest

import benchmarks
from benchmarks.__main__ import MEASUREMENTS, main
from benchmarks.harness.record import Record


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_every_measurement_is_a_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"benchmarks {name}" in shown
    assert "--out" in shown
    assert (Path(benchmarks.__file__).parent / f"{name.replace('-', '_')}.py").is_file()


def test_a_setting_out_of_range_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kill-recovery", "--stages", "1"]) == 2
    assert "stages is 1; give 2 or more" in capsys.readouterr().err


def test_a_measurement_is_run_and_rendered(tmp_path: Path) -> None:
    small = "--every 1 --pairs 1 --steps 1 --network mlp --shape 64 --batch 8"
    assert main(["checkpoint", *small.split(), "--out", str(tmp_path)]) == 0
    record = Record.read(tmp_path)
    assert record.settings["every"] == [1]
    assert record.command.startswith("python -m benchmarks checkpoint ")
    assert main(["render", str(tmp_path)]) == 0
    assert (tmp_path / "README.md").is_file()

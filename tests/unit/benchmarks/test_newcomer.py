"""The first commands of a newcomer, run and shown."""

from pathlib import Path

import pytest

from benchmarks.harness.record import Record
from benchmarks.newcomer import NewcomerSettings, measure_newcomer
from benchmarks.report.render import render
from hocket.errors import OptionError


def test_commands_run_in_one_folder_and_are_shown_with_their_outputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = (
        "hocket draw --method fdg --out fdg.svg",
        "hocket launch fdg.svg --processes",
        "hocket --help",
    )
    measure_newcomer(NewcomerSettings(out=tmp_path, commands=commands))
    drawn, refused, _ = Record.read(tmp_path).rows
    assert drawn["exit_code"] == 0
    assert refused["exit_code"] == 2
    assert drawn["cpu_s"] > 0
    assert 0 < drawn["wall_s"] < 60
    assert "hocket --help: " in capsys.readouterr().err
    render(tmp_path)
    text = (tmp_path / "README.md").read_text()
    for command, row in zip(commands, (drawn, refused), strict=False):
        assert f"| `{command}` |" in text
        assert row["output"][0] in text


def test_what_is_no_command_of_hocket_is_refused() -> None:
    with pytest.raises(OptionError, match="'rm -r x' is no command of hocket; begin it with"):
        NewcomerSettings(commands=("rm -r x",))

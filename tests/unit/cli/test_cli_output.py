"""A training ends well although nobody can read what it prints."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hocket
from hocket.cli import output
from hocket.cli.main import main
from hocket.distributed.folder import last_words

QUICK = ("--network", "mlp:hidden=[16,16]", "--epochs", "1", "--run-dir", "mine")


@pytest.mark.parametrize(
    "redirections",
    [">/dev/full 2>/dev/full", "<&- >&- 2>&-"],
    ids=["full disk", "closed terminal"],
)
def test_a_training_whose_output_is_lost_ends_with_its_results(redirections, tmp_path):
    source = str(Path(hocket.__file__).parents[1])
    command = [sys.executable, "-m", "hocket", "train", *QUICK]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirections}', "sh", *command],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
        timeout=400,
        check=False,
    )
    assert done.returncode == 0
    assert json.loads((tmp_path / "mine/summary.json").read_text())["state"] == "finished"
    assert (tmp_path / "mine/network.pt").stat().st_size


@pytest.mark.parametrize("terminal", [False, True])
def test_a_folder_may_have_any_name(terminal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("COLUMNS", "200")
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    folder = "x/[/x] [bold]ä[/bold] :smile:"
    assert main(["train", *QUICK[:4], "--run-dir", folder]) == 0
    stream.flush()
    printed = stream.buffer.getvalue().decode()
    assert r"finished: x/[/x] [bold]\xe4[/bold] :smile:" in printed
    assert "test error" in printed


def test_control_characters_of_others_reach_no_terminal(capsys):
    output.print_note("esc\x1b[31m\x9b\r")
    output.print_result("\x1b]0;title\x07")
    last_words.write_last_words("\x1b[2J\n")
    said, noted = capsys.readouterr()
    assert said == "\\x1b]0;title\\x07\n"
    assert noted == "esc\\x1b[31m\\x9b\\x0d\n\\x1b[2J\n"


def test_a_run_file_tells_the_connections_that_it_makes(tmp_path, capsys):
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"log_to": "wandb", "network": "none"}))
    main(["train", "--config", str(file)])
    assert "makes connections: log_to sends metrics to 'wandb'" in capsys.readouterr().err
    main(["train", "--config", str(file), "--log-to", "wandb"])
    assert "makes connections" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"label_smoothing": 10**400}, "label_smoothing is 1"),
        ({"seed": 10**400}, "seed is 1"),
        ({"method": "fdg:shrink=" + "[" * 99999}, "nested too deeply"),
        ({"method": "fdg:shrink=" + "9" * 5000}, "shrink"),
        ({"data_dir": "a\0b"}, "without a NUL"),
        ({"stages": 10**9}, "stages is 1000000000"),
    ],
    ids=["float", "seed", "deep", "long", "NUL", "stages"],
)
def test_strange_values_of_a_run_file_end_in_a_sentence(choices, words, tmp_path, capsys):
    file = tmp_path / "run.json"
    file.write_text(json.dumps(choices))
    assert main(["train", "--config", str(file)]) == 2
    assert words in capsys.readouterr().err

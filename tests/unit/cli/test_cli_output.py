"""A training ends well although nobody can read what it prints."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from end_to_end.namespaces import environment
from hocket.cli import output
from hocket.cli.main import main
from hocket.cli.output import print_tables
from hocket.distributed.folder import last_words
from hocket.runs.summary import Summary
from hocket.runs.tables import (
    METHOD_COLUMNS,
    data_table,
    method_rows,
    method_table,
    option_table,
    summary_tables,
)
from hocket.training.results.metrics import EpochResult

QUICK = ("--network", "mlp:hidden=[16,16]", "--epochs", "1", "--run-dir", "mine")


def test_a_training_whose_output_is_lost_ends_with_its_results(tmp_path):
    """The disk of standard output is full, and the terminal of the others is closed."""
    command = [sys.executable, "-m", "hocket", "train", *QUICK]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >/dev/full <&- 2>&-', "sh", *command],
        cwd=tmp_path,
        env=environment() | {"OMP_NUM_THREADS": "1"},
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


def test_a_run_file_tells_the_connections_that_it_makes(call, here):
    (here / "run.json").write_text(json.dumps({"log_to": "wandb", "network": "none"}))
    words = ("train", "--config", "run.json")
    assert "makes connections: log_to sends metrics to 'wandb'" in call(*words)[2]
    assert "makes connections" not in call(*words, "--log-to", "wandb")[2]


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
def test_strange_values_of_a_run_file_end_in_a_sentence(refused, here, choices, words):
    (here / "run.json").write_text(json.dumps(choices))
    assert words in refused("train", "--config", "run.json")


# Tables.


def printed(capsys, monkeypatch, width, *tables):
    monkeypatch.setenv("COLUMNS", str(width))
    print_tables(*tables)
    text = capsys.readouterr().out
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    return text


def words_in(text):
    return set(re.findall(r"[\w.,:%=()/-]+", text))


@pytest.mark.parametrize("width", [40, 80, 100, 120, 200])
def test_no_value_of_the_methods_is_cut_and_prose_breaks_between_words(
    capsys, monkeypatch, width
):
    text = printed(capsys, monkeypatch, width, method_table(4))
    for row in method_rows(4):  # all but the paper, which is prose
        assert words_in(" ".join(row[:-1])) <= words_in(text)
    assert {name for name in METHOD_COLUMNS if name in text} == set(METHOD_COLUMNS)
    printed(capsys, monkeypatch, width, option_table(), data_table())


def test_no_number_of_a_result_is_cut(capsys, monkeypatch):
    epochs = (EpochResult(0, 1.23456789, None, 1.0, 8, (0.0,), (0,)),)
    summary = Summary("finished", "", Path("runs/mine"), epochs, 12345.6, 98765.4, (), ())
    text = printed(capsys, monkeypatch, 40, *summary_tables(summary))
    assert "12345.6" in words_in(text)

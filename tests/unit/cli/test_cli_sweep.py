"""`hocket sweep`: what it prints, and its exit codes."""

import re
import shutil
import signal

import pytest

from unit.lab.studies.in_process import HereProcess, run_here

STUDY = """
target = "test_loss <= 100"

[base]
network = "mlp:hidden=[4]"
data = "synthetic:shape=[8],classes=3,examples=32,test_examples=16"
epochs = 1

[grid]
method = ["bp", "fdg"]
"""


@pytest.fixture(autouse=True)
def processes(here, monkeypatch):
    """Write a study into an empty folder, and run in this process; what counts the runs."""
    (here / "study.toml").write_text(STUDY)
    return run_here(monkeypatch, draw=False)


def test_a_sweep_prints_its_table_and_its_progress_and_what_had_ended_before(call, tmp_path):
    code, table, told = call("sweep", "study.toml")
    assert code == 0
    assert "| row | stale | versions | test_loss | test_error | train_loss | reached |" in table
    assert "| bp | 0 | 1 |" in table
    assert "| fdg | 1 | 2 |" in table
    assert table.count("| 1 of 1 |") == 2
    assert "[1/2] bp, seed 0: test_loss " in told
    assert "[2/2] fdg, seed 0: test_loss " in told
    assert "the record is in sweeps/study" in told
    assert (tmp_path / "sweeps/study/record.json").exists()
    code, _, told = call("sweep", "study.toml", "--jobs", "1")
    assert code == 0
    assert "2 of 2 runs have ended before" in told


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        (True, "1 run folders belong to no run of the study as it is now: bp-stages-2-"),
        (False, "the record keeps the results of 1 runs that belong to no row of the study"),
    ],
    ids=["orphans", "results without a row"],
)
def test_runs_that_belong_to_no_row_any_more_are_told(call, tmp_path, kept, said):
    call("sweep", "study.toml")
    if not kept:
        shutil.rmtree(tmp_path / "sweeps/study/runs")
    (tmp_path / "study.toml").write_text(STUDY.replace('"bp", ', ""))
    code, _, told = call("sweep", "study.toml")
    assert code == 0
    assert said in told


@pytest.mark.parametrize(
    ("output", "ended", "sent", "code", "said"),
    [
        (b"", -15, False, 1, "runs stopped by others: 2; the same command goes on"),
        (b"none left\n", 1, False, 1, "failed: bp, seed 0: .* exit code 1: none left"),
        (b"", -15, True, 143, r"(?s)stopped: bp, seed 0\n.*missing: 2"),
    ],
    ids=["stopped by others", "failed", "stopped"],
)
def test_how_runs_ended_is_told(call, monkeypatch, output, ended, sent, code, said):
    started = []

    def end(self, words, log):
        started.append(words)
        log.write(output)
        if sent:
            signal.raise_signal(signal.SIGTERM)
        self.returncode = ended

    monkeypatch.setattr(HereProcess, "__init__", end)
    found, table, told = call("sweep", "study.toml", "--jobs", "1")
    assert found == code
    assert len(started) == (1 if sent else 2)
    assert "| bp (incomplete) |" in table
    assert re.search(said, told)


def test_an_impossible_study_runs_nothing(refused, tmp_path, processes):
    (tmp_path / "study.toml").write_text(STUDY.replace('"fdg"', '"fgd"'))
    told = refused("sweep", "study.toml", "--jobs", "-1")
    assert "unknown method 'fgd' (did you mean 'fdg'" in told
    assert "jobs is -1" in told
    assert processes.started == 0


def test_the_data_folder_is_given_on_the_command_line(call, refused, tmp_path):
    text = STUDY.replace(STUDY.split("\n")[5], 'data = "text:context=4"')
    text = text.replace('["bp", "fdg"]', '"bp"\nstages = 1')
    text = text.replace("mlp:hidden=[4]", "gpt:context=4,width=8,depth=1,heads=1")
    (tmp_path / "study.toml").write_text(text)
    (tmp_path / "words.txt").write_text("to be or not to be " * 20)
    said = "it reads files; pass their folder with --data-dir"
    assert said in refused("sweep", "study.toml")
    assert call("sweep", "study.toml", "--data-dir", tmp_path / "words.txt")[0] == 0

"""Studies in processes: killed and interrupted in the middle."""

import signal
import subprocess
import sys
from pathlib import Path

import hocket
import hocket_lab
from contract.processes import wait_until
from hocket.runs.run_dir import lock_run_dir
from hocket_lab import Study
from unit.lab.studies.in_process import run_here

WAIT_S = 1000.0
STUDY = """
target = "test_loss <= 1.5"
learning_rates = [0.05]
seeds = [0, 1]
seeds_for_sweep = [0]
jobs = 2

[base]
network = "mlp:hidden=[8]"
data = "synthetic:shape=[8],classes=3,examples=256,test_examples=16"
batch_size = 16
epochs = 20

[grid]
method = ["fdg", "dgl"]
"""


def start(folder, *options, out="killed"):
    words = [sys.executable, "-m", "hocket", "sweep", "study.toml", "--out", out, *options]
    return subprocess.Popen(words, cwd=folder, stderr=subprocess.PIPE)


def checkpoints(folder):
    """The checkpoints of all runs of a study that have not ended."""
    return {
        place
        for run in (folder / "runs").glob("*")
        if not (run / "result.json").exists()
        for place in (run / "checkpoints").glob("[!.]*")
    }


def in_third_epoch(folder):
    """The runs that have not ended, and have a checkpoint behind their second epoch."""
    return {place.parents[1] for place in checkpoints(folder) if "epoch-000002" in place.name}


def is_free(run):
    """Whether no process trains in the folder of a run any more."""
    try:
        with lock_run_dir(run):
            return True
    except hocket.HocketError:
        return False


def without_times(rows):
    """The rows of a record without the times that were measured."""
    if isinstance(rows, dict):
        return {k: without_times(v) for k, v in rows.items() if k != "seconds"}
    return [without_times(row) for row in rows] if isinstance(rows, list) else rows


def test_nothing_is_lost_by_sigkill_and_ctrl_c(tmp_path, monkeypatch):
    (tmp_path / "study.toml").write_text(STUDY)
    folder = tmp_path / "killed"
    sweep = start(tmp_path)
    wait_until(lambda: in_third_epoch(folder) or sweep.poll() is not None, WAIT_S)
    begun = in_third_epoch(folder)
    assert begun, "all runs ended before they were to be killed"
    sweep.kill()
    sweep.communicate()
    assert not (folder / "record.json").exists()
    # The runs notice that the sweep is gone, and end.
    runs = [run for run in (folder / "runs").iterdir() if (run / ".lock").exists()]
    wait_until(lambda: all(map(is_free, runs)), WAIT_S)

    before = checkpoints(folder)
    sweep = start(tmp_path)
    wait_until(lambda: checkpoints(folder) - before or sweep.poll() is not None, WAIT_S)
    sweep.send_signal(signal.SIGINT)
    told = sweep.communicate()[1].decode()
    assert sweep.returncode in (130, 0), told  # 0 if it was done before the signal came
    if sweep.returncode:
        assert "the same command goes on" in told

    study = Study.read(tmp_path / "study.toml")
    run_here(monkeypatch)
    went_on = hocket_lab.sweep(study, folder, progress=False)
    whole = hocket_lab.sweep(study, tmp_path / "whole", progress=False)
    assert whole.stopped_by == whole.unfinished == 0
    for row in whole.rows:
        assert [run["state"] for run in row["runs"]] == ["finished"] * 2
    assert all((run / "output.log").read_text().count("epoch 1/20:") == 1 for run in begun)
    assert without_times(went_on.rows) == without_times(whole.rows)
    for run in (tmp_path / "whole/runs").iterdir():
        other = folder / "runs" / run.name
        assert Path(run, "network.pt").read_bytes() == Path(other, "network.pt").read_bytes()

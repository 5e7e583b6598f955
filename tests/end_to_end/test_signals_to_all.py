"""A signal to every process of a job, as job managers send it, leaves what was trained."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.faults.processes import children_of
from contract.processes import wait_until
from end_to_end.namespaces import environment

WAIT_S = 600.0
NETWORK = """
import time
from pathlib import Path

import torch
from torch import nn


class Slow(nn.Module):
    def forward(self, x):
        time.sleep(0.003)
        if not torch.is_grad_enabled():
            Path("evaluating").touch()
            time.sleep(0.02)
        return x


def build(in_features, num_classes):
    layers = nn.Linear(in_features, 8), nn.Linear(8, 8), Slow(), nn.Linear(8, num_classes)
    return nn.Sequential(nn.Flatten(), *layers)
"""
SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
PHASES = ["start", "training", "evaluation", "checkpoint"]
# By their whole names, so that pytest refuses one that is gone.
HEARD = [
    "lab/report/test_live.py::test_the_command_waits_for_the_first_run_and_refuses_a_file",
    "cli/test_cli_resume.py::test_a_signal_leaves_a_checkpoint_of_its_tick",
    "cli/test_cli_resume.py::test_ctrl_c_after_the_last_epoch_leaves_a_summary",
]


def wait_for(condition, job):
    wait_until(lambda: condition() or job.poll() is not None, WAIT_S)


def all_processes(pid):
    """A process and all that it has started, each after the one that has started it."""
    found = [pid]
    for each in found:
        found += children_of(each)
    return found


def stop(folder, number, phase, seed, *words):
    """Start a training in three processes, signal all of them in a phase, and check the end.

    The seed draws the moment within the phase, and the order of the processes.
    """
    draw = random.Random(seed)
    (folder / "nets.py").write_text(NETWORK)
    metrics = folder / "run/metrics.jsonl"
    command = [
        *(sys.executable, "-m", "hocket", "train", "--processes", "3", "--stages", "3"),
        *("--network", "nets.py:build", "--epochs", "1000", "--run-dir", "run", *words),
    ]
    with open(folder / "err", "w") as err:
        out, env = subprocess.DEVNULL, environment()
        job = subprocess.Popen(command, cwd=folder, stderr=err, stdout=out, env=env)
    try:
        if phase == "start":
            wait_for(lambda: len(all_processes(job.pid)) == 5, job)
        else:
            wait_for(lambda: metrics.exists() and metrics.stat().st_size, job)
        if phase == "evaluation":
            (folder / "evaluating").unlink(missing_ok=True)
            wait_for((folder / "evaluating").exists, job)
        time.sleep(draw.random() * (0.1 if phase == "evaluation" else 1.0))
        begun = metrics.exists() and metrics.stat().st_size
        processes = all_processes(job.pid)
        draw.shuffle(processes)
        for pid in processes:
            os.kill(pid, number)
        assert job.wait(WAIT_S) == 128 + number
        # No process is left.
        wait_until(lambda: not any(Path("/proc", str(pid)).exists() for pid in processes))
    finally:
        job.kill()
    told = (folder / "err").read_text()
    assert "hung" not in told
    assert "Traceback" not in told
    if begun:
        assert (folder / "run/network.pt").exists(), told
        assert json.loads((folder / "run/summary.json").read_text())["state"] == "interrupted"
        assert any(folder.glob("run/checkpoints/tick-*")) == bool(words)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_to_all_processes_ends_them_in_good_order(tmp_path, number):
    words = () if number == signal.SIGHUP else ("--checkpoint-every", "1000")
    stop(tmp_path, number, "training", 1, *words)


@pytest.mark.longer
@pytest.mark.parametrize("seed", range(20))
def test_it_does_so_in_every_phase(tmp_path, seed):
    number, phase = SIGNALS[seed % len(SIGNALS)], PHASES[seed % len(PHASES)]
    every = "5" if phase == "checkpoint" else "1000"
    stop(tmp_path, number, phase, seed, "--checkpoint-every", every)


def test_tests_of_signals_pass_in_the_background_and_under_nohup():
    tests = (sys.executable, "-m", "pytest", "-n0", *(f"tests/unit/{test}" for test in HEARD))
    ignoring = ("sh", "-c", 'trap "" INT HUP; exec "$@"', "sh")
    words, root = [*ignoring, *tests], Path(__file__).parents[2]
    done = subprocess.run(words, check=False, cwd=root, capture_output=True, timeout=600)
    assert done.returncode == 0, done.stdout.decode()

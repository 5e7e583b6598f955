"""Trainings that take turns in one process learn what they learn alone."""

import json
import os
import signal
import subprocess
import threading
from collections import Counter
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from contract.processes import wait_until
from contract.tape import record_on_tapes
from hocket.runs.config import RunConfig
from hocket.runs.start import train_in_process
from hocket.training.fit.interrupt import Interrupt
from hocket_lab.studies import child, pool
from hocket_lab.studies.child import Turns
from hocket_lab.studies.pool import Pool, in_common
from hocket_lab.studies.rows import Row, file_digests
from hocket_lab.studies.run_folder import RunResult, read_result

NETWORK = """
from torch import nn

class Fails(nn.Linear):
    count = 0

    def forward(self, x):
        self.count += self.training
        if self.count == 4:
            raise self.error("enough")
        return super().forward(x)

def build():
    return nn.Sequential(
        nn.Linear(8, 8), nn.Dropout(0.3), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.Linear(8, 3)
    )

def fail():
    layers = build()
    layers[3] = Fails(8, 8)
    layers[3].error = ValueError
    return layers

def leave():
    layers = fail()
    layers[3].error = SystemExit
    return layers
"""
TINY = {
    "network": "own.py:build",
    "data": "synthetic:shape=[8],classes=3,examples=64,test_examples=16",
    "batch_size": 8,
    "plan": "3",
    "threads": 1,
    "log_every": 1,
    "epochs": 2,
}
RUNS = [
    RunConfig(**TINY | {"method": "fdg", "stages": 3, "plan": "3,4"}),
    RunConfig(**TINY, method="dgl", seed=2),
    RunConfig(**TINY, method="fdg", seed=3, evaluate_every=3, checkpoint_every=5),
]
TIMES = {"time", "seconds"}


@pytest.fixture(autouse=True)
def working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(NETWORK)


class RecordedTurns(Turns):
    """Turns, with the names of the threads that took them."""

    def __init__(self):
        super().__init__(Interrupt())
        self.order = []

    def _take(self, output, states):
        super()._take(output, states)
        self.order.append(threading.current_thread().name)


def in_folders(configs, name):
    folders = [Path(name, str(number)) for number in range(len(configs))]
    for folder in folders:
        folder.mkdir(parents=True)
    return [replace(c, run_dir=folder) for c, folder in zip(configs, folders, strict=True)]


def words(config):
    return [json.dumps(config.as_dict()), json.dumps(file_digests(vars(config)))]


def train_alone(configs):
    for config in in_folders(configs, "alone"):
        train_in_process(config, True, child.report)


def train_in_turns(configs):
    """Train at the same time; return the numbers of the trainings in the order of turns."""
    turns = RecordedTurns()
    threads = [
        threading.Thread(target=turns.train, args=(words(config),), name=config.run_dir.name)
        for config in in_folders(configs, "together")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return turns.order


def learned(folder):
    """Weights of a run, and its metrics without times."""
    lines = Path(folder, "metrics.jsonl").read_text().splitlines()
    rows = [{k: v for k, v in json.loads(row).items() if k not in TIMES} for row in lines]
    return Path(folder, "network.pt").read_bytes(), rows


@pytest.mark.parametrize("replays", [False, True])
def test_trainings_in_turns_learn_what_they_learn_alone(replays, monkeypatch):
    recorders = record_on_tapes(monkeypatch)
    options = {"cuda_graphs": True, "check_every": 5} if replays else {}
    runs = [replace(config, **options) for config in RUNS]
    train_alone(runs)
    order = train_in_turns(runs)
    for number in range(3):
        assert learned(f"together/{number}") == learned(f"alone/{number}")
        assert Path(f"together/{number}/output.log").read_text().count("epoch 2/2:") == 1
    # To begin, and for each of two epochs 8 batches and 2 of an evaluation, and their ends.
    counts = Counter(order)
    assert counts["0"] == counts["1"] == 1 + 2 * (9 + 3)
    # One after the other, while there are three.
    together = order[6 : 3 * counts["0"] - 3]
    assert len(set(together[:3])) == 3
    assert together[3:] == together[:-3]
    assert (sum(recorder.replays for recorder in recorders) > 50) == replays


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_graphs_on_streams_learn_what_they_learn_alone():
    options = {"cuda_graphs": True, "check_every": 5, "device": "cuda"}
    runs = [replace(config, **options) for config in RUNS]
    train_alone(runs)
    train_in_turns(runs)
    for number in range(3):
        assert learned(f"together/{number}") == learned(f"alone/{number}")


def test_a_run_that_fails_leaves_the_others_whole():
    failing = [
        replace(RUNS[1], network="own.py:fail"),
        replace(RUNS[1], network="own.py:leave"),
        replace(RUNS[1], optimizer="SGD:lr=1e38"),
    ]
    train_alone(RUNS[2:])
    train_in_turns([*RUNS[2:], *failing])
    assert learned("together/0") == learned("alone/0")
    results = [read_result(Path("together", str(number))) for number in range(4)]
    assert [result.state for result in results] == ["finished", "failed", "failed", "diverged"]
    assert [result.message for result in results[1:3]] == [
        "ValueError: enough",
        "SystemExit: enough",
    ]
    assert "Traceback" in Path("together/1/output.log").read_text()
    assert "Traceback" not in Path("together/0/output.log").read_text()


def test_a_run_without_any_result_ends_the_process(monkeypatch):
    """Else the sweep would wait for it, as on a full disk."""

    def write(folder, result):
        raise OSError("no space left")

    told = []
    monkeypatch.setattr(os, "kill", lambda process, number: told.append(number))
    monkeypatch.setattr(child, "write_result", write)
    (config,) = in_folders(RUNS[:1], "full")
    with pytest.raises(OSError, match="no space left"):
        copy_context().run(Turns(Interrupt()).train, words(config))
    assert told == [signal.SIGTERM]


# Processes of a sweep.

MANY = "synthetic:shape=[8],classes=3,examples=512,test_examples=16"
LONG = Row("long", TINY | {"data": MANY, "epochs": 6, "log_every": 100, "method": "fdg"}, ())


def ended(runs):
    """Wait for the ends of all runs of a pool; return their results by seed."""
    results = {}
    wait_until(
        lambda: results.update({r.seed: end for r, end in runs.ended()}) or not runs.running
    )
    return results


def test_runs_that_share_a_process_stop_and_continue(monkeypatch):
    """And further ones begin when there is room."""
    monkeypatch.setattr(pool, "in_common", lambda run: run.config.threads)
    with Pool(Path("runs"), shares=True) as runs:
        for seed in (0, 1):
            runs.start(LONG.run(None, seed))
        folders = [each.folder for each in runs.running]
        (shared,) = {each.process for each in runs.running}
        wait_until(lambda: all([*folder.glob("checkpoints/[!.]*")] for folder in folders))
        runs.stop()
        assert ended(runs) == {0: None, 1: None}
        assert shared.returncode == 128 + signal.SIGTERM
        for seed in (0, 1):
            runs.start(LONG.run(None, seed))
        (shared,) = {each.process for each in runs.running}
        results = {}
        wait_until(lambda: results.update({r.seed: end for r, end in runs.ended()}) or results)
        runs.start(LONG.run(None, 2))
        assert runs.running[-1].process is shared
        results |= ended(runs)
        assert results == dict.fromkeys(range(3), RunResult("finished"))
        shared.stdin.close()  # as if the sweep were killed
        assert shared.wait(60) == 128 + signal.SIGTERM
    train_alone([LONG.run(None, seed).config for seed in (0, 2)])
    for number, folder in enumerate([folders[0], Path("runs", LONG.run(None, 2).name)]):
        assert learned(folder) == learned(f"alone/{number}")
        assert Path(folder, "output.log").read_text().count("epoch 6/6:") == 1


def test_a_process_for_several_runs_ends_with_the_pool():
    with Pool(Path("runs")) as runs:
        process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        runs._shared["kind"] = process
    assert process.returncode == -signal.SIGKILL


GRAPHS = TINY | {"cuda_graphs": True, "check_every": 5, "device": "cuda"}


def test_only_runs_with_cuda_graphs_share_a_process_and_those_that_agree():
    def kind(**options):
        return in_common(Row("row", GRAPHS | options, ()).run(None, 0))

    assert kind() == kind(method="dgl", seed=3, optimizer="SGD:lr=1")
    Path("other.py").write_text(NETWORK + "# another")
    others = [kind(threads=2), kind(device="cuda:1"), kind(network="other.py:build")]
    assert len({kind(), *others}) == 4
    alone = {"cuda_graphs": False, "device": "cpu", "workers": 1, "log_to": "wandb"}
    for name, value in alone.items():
        assert kind(**{name: value}) is None, name

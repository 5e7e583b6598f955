"""A stage is killed and restarted while the others train; every lost packet is counted."""

import json
import os
import re
import shutil
from functools import partial
from math import log
from pathlib import Path
from statistics import fmean

import pytest

from contract import returning
from contract.free_stages import assert_all_counted, assert_equal_ends
from contract.returning import (
    EPOCHS,
    EVERY,
    KILLED_AT,
    LENGTH,
    STAGES,
    checkpoints,
    read_results,
    train,
)
from hocket.cli.main import main
from hocket.codecs import VQ
from hocket.errors import HangError

pytestmark = pytest.mark.xdist_group("killed and restarted")
TICKS = EPOCHS * LENGTH
LOSS_OF_GUESSING = log(3)
"""Loss of a stage that guesses one of three classes."""
VICTIMS = [0, 1, 2]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Function that trains once for each victim, and returns the results and the folder."""
    outcomes = {}

    def run(victim):
        if victim not in outcomes:
            folder = tmp_path_factory.mktemp(f"victim{victim}")
            codec = VQ(groups=1, codes=3) if victim == 1 else None
            assert returning.launch_stages(partial(train, codec=codec), folder, victim) == 0
            outcomes[victim] = read_results(folder), folder
        return outcomes[victim]

    return run


every_victim = pytest.mark.parametrize("victim", VICTIMS)


@every_victim
def test_the_others_train_while_it_is_gone_and_it_trains_the_rest(victim, trained):
    stages, _ = trained(victim)
    for k, stage in enumerate(stages):
        assert stage["updates"] == list(range(stage["first tick"], TICKS))
        if k != victim:
            assert stage["first tick"] == 0
    repeated = KILLED_AT + 1 - stages[victim]["first tick"]
    assert 0 < repeated <= 2 * EVERY


def test_packets_are_counted_though_none_follows(tmp_path):
    assert returning.launch_stages(returning.train_apart, tmp_path, 0) == 0
    stages = read_results(tmp_path)
    assert stages[1]["receive"]["orphaned"] > 0
    assert_all_counted(stages)


# Not 1, where three codes carry too little information to learn from.
@pytest.mark.parametrize("victim", [0, 2])
def test_every_stage_has_learned(victim, trained):
    for stage in trained(victim)[0]:
        # The order of ticks depends on the machine: one epoch may fail to learn, not all.
        losses = stage["losses"]
        best = min(fmean(losses[at : at + LENGTH]) for at in range(0, len(losses), LENGTH))
        assert best < 0.9 * LOSS_OF_GUESSING


@every_victim
def test_every_packet_is_used_or_counted_and_all_end_with_the_same_network(victim, trained):
    stages, _ = trained(victim)
    assert_all_counted(stages)
    assert_equal_ends(stages, EPOCHS)


@every_victim
def test_no_process_is_left_behind(victim, trained):
    _, folder = trained(victim)
    pids = [int(file.read_text()) for file in folder.glob("*.pid")]
    assert len(pids) == STAGES + 1
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_rejoin_is_reported_and_each_stage_has_its_own_checkpoints(tmp_path, capfd):
    work = partial(train, again=True)
    assert returning.launch_stages(work, tmp_path, 1, grace_s=30.0) == 137
    err = capfd.readouterr().err
    assert "process 1 was ended by SIGKILL" in err
    assert "it alone is restarted, 1 of at most 1 times" in err
    assert "hung" not in err  # the others know that the process is not replaced
    for rank in range(STAGES):
        assert checkpoints(tmp_path, rank)
    # The whole job continues from the checkpoints of the stages.
    resumed = partial(train, resume=True)
    assert returning.launch_stages(resumed, tmp_path, None) == 0
    stages = read_results(tmp_path)
    for stage in stages:
        assert stage["first tick"] > 0
        assert not stage["updates"] or stage["updates"][-1] == TICKS - 1
    assert stages[0]["history"] == stages[2]["history"]
    assert len(stages[0]["history"]) == EPOCHS
    shutil.rmtree(checkpoints(tmp_path, 1)[0].parent)
    assert returning.launch_stages(resumed, tmp_path, None) != 0
    assert "there is no folder of a checkpoint in it" in capfd.readouterr().err


# If it cannot be replaced alone, the whole job is restarted.


def warns_of_restart(loss, number, limit):
    """Context manager that expects the warning about a restart of the whole job."""
    start = f"{loss}; starting the whole job again from its last checkpoint, {number} of at"
    return pytest.warns(UserWarning, match=f"{start} most {limit} times")


def test_the_whole_job_is_restarted_if_the_new_process_hangs(tmp_path, capfd):
    work = returning.train_without_rejoin
    with warns_of_restart("a process hung", 2, 2):
        assert returning.launch_with_restarts(work, tmp_path, 1, limit=2, grace_s=1.0) == 0
    err = capfd.readouterr().err
    assert "it alone is restarted, 1 of at most 2 times" in err
    assert re.search(r"waited \d+ s for stage 1 to come back; if nothing hangs, increase", err)
    for stage in read_results(tmp_path):
        assert stage["first tick"] > 0
        assert stage["updates"][-1:] in ([], [TICKS - 1])


@pytest.mark.parametrize("victim", [0, STAGES - 1])
def test_a_stage_that_hangs_is_noticed_when_the_others_need_nothing(tmp_path, capfd, victim):
    code = returning.launch_stages(returning.train_stopped, tmp_path, victim)
    assert code == HangError.exit_code
    err = capfd.readouterr().err
    assert f"process {victim} hung: it did not answer the others, and was killed" in err


def test_a_kill_before_the_first_checkpoint_restarts_the_whole_job(tmp_path, capfd):
    work = partial(train, points=["saved"])
    with warns_of_restart("a process was gone", 2, 2):
        assert returning.launch_with_restarts(work, tmp_path, 1, limit=2) == 0
    err = capfd.readouterr().err
    assert "it alone is restarted, 1 of at most 2 times" in err
    assert "stage 1 was started again alone, but was killed before its first" in err
    for stage in read_results(tmp_path):
        assert stage["updates"] == list(range(TICKS))


@pytest.mark.parametrize(
    ("victim", "points"),
    [(0, ["evaluation"]), (2, ["tick", "gathered"])],
    ids=["evaluation", "twice"],
)
def test_a_kill_after_the_elastic_phase_restarts_the_whole_job_from_its_end(
    victim, points, tmp_path, capfd
):
    limit = len(points)
    with warns_of_restart("a process was killed by SIGKILL", limit, limit):
        work = partial(train, points=points)
        assert returning.launch_with_restarts(work, tmp_path, victim, limit) == 0
    assert capfd.readouterr().err.count("it alone is restarted") == limit - 1
    stages = read_results(tmp_path)
    assert_equal_ends(stages, EPOCHS)
    for stage in stages:
        assert stage["first tick"] >= TICKS
        assert stage["updates"] == []


NETWORK = '''
import os, signal
from pathlib import Path
from torch import nn

class Dies(nn.Module):
    """Kills the first process in the trial batch, and in the thirtieth batch of training."""

    seen = 0

    def forward(self, x):
        self.seen += self.training
        marker = Path("died" if self.training else "died-early")
        due = self.seen == 30 or not self.training
        if due and os.environ["RANK"] == "0" and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return x

def network():
    hidden = [nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32)]
    return nn.Sequential(nn.Flatten(), *hidden, Dies(), nn.ReLU(), nn.Linear(32, 10))
'''


@pytest.mark.filterwarnings("default")
def test_on_the_command_line(tmp_path, monkeypatch, capfd):
    """Kill the first stage, which reads the data and writes the run folder."""
    monkeypatch.chdir(tmp_path)
    Path("dying.py").write_text(NETWORK)
    words = "--epochs 3 --processes 2 --checkpoint-every 4 --max-restarts 2 --log-every 1"
    words += " --method dgl-async:head=mlp --network dying.py:network --plan 5 --run-dir run"
    words += " --optimizer SGD:lr=0.05,momentum=0.9,weight_decay=0.0005"
    assert main(["train", *words.split()]) == 0
    err = capfd.readouterr().err
    assert "starting the whole job again from its last checkpoint, 1 of at most 2 times" in err
    assert "it alone is restarted, 2 of at most 2 times" in err
    summary = json.loads(Path("run/summary.json").read_text())
    assert (summary["state"], len(summary["epochs"])) == ("finished", 3)
    assert summary["epochs"][-1]["evaluation"]["error"] < 0.5
    for file in ("metrics.jsonl", "metrics.stage1.jsonl"):
        rows = [json.loads(row) for row in Path("run", file).read_text().splitlines()]
        batches = [row["batch"] for row in rows if row["kind"] == "update"]
        assert batches == list(range(len(batches)))

"""A stage that is killed and started again while the others learn; what is lost is counted."""

import itertools
import json
import os
import shutil
from functools import partial
from math import log
from pathlib import Path
from statistics import fmean

import pytest

from contract import returning
from contract.returning import (
    EPOCHS,
    EVERY,
    KILLED_AT,
    LENGTH,
    MORE,
    STAGES,
    parts,
    said,
    train,
)
from hocket.cli.main import main

pytestmark = pytest.mark.xdist_group("killed and started again")
TURNS = EPOCHS * LENGTH
GUESSED = log(3)
"""The loss of a stage that knows nothing of three classes."""
VICTIMS = [0, 1, 2]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A training for each victim, done once: what its processes said, and where."""
    found = {}

    def one(victim):
        if victim not in found:
            folder = tmp_path_factory.mktemp(f"victim{victim}")
            work = returning.coded if victim == 1 else returning.whole
            assert returning.started(work, folder, victim) == 0
            found[victim] = said(folder), folder
        return found[victim]

    return one


every_victim = pytest.mark.parametrize("victim", VICTIMS)


@every_victim
def test_the_others_learn_while_it_is_away_and_it_learns_the_rest(victim, done):
    stages, _ = done(victim)
    for k, stage in enumerate(stages):
        assert stage["learned"] == list(range(stage["began"], TURNS))
        if k != victim:
            assert stage["began"] == 0
    # The new process began after turns of the others that came after the kill.
    assert TURNS > KILLED_AT + MORE
    again = KILLED_AT + 1 - stages[victim]["began"]
    assert 0 < again <= 2 * EVERY


@every_victim
def test_every_packet_is_used_or_counted_as_dropped_or_as_lost(victim, done):
    stages, _ = done(victim)
    for before, own in itertools.pairwise(stages):
        uses, ledger = own["uses"], before["ledger"]
        assert before["turns"] == ledger["sent"] + ledger["unsent"]
        assert ledger["sent"] == uses["arrived"] + uses["lost"] - uses["orphaned"]
        used = uses["drawn"] - uses["reused"]
        assert uses["arrived"] == used + uses["dropped"] + own["waiting"]
        assert uses["drawn"] == own["turns"]


@pytest.mark.parametrize("victim", [0, 2])  # so few codes carry too little to learn from it
def test_every_stage_has_learned(victim, done):
    for stage in done(victim)[0]:
        # How turns fall is up to the machine: single epochs go astray, but not all of them.
        losses = stage["losses"]
        best = min(fmean(losses[at : at + LENGTH]) for at in range(0, len(losses), LENGTH))
        assert best < 0.9 * GUESSED


@every_victim
def test_all_end_with_the_same_network(victim, done):
    first, *others = done(victim)[0]
    for other in others:
        for what in ("history", "weights", "again"):
            assert other[what] == first[what]
    assert [epoch["number"] for epoch in first["history"]] == list(range(EPOCHS))
    assert first["history"][-1]["score"]["loss"] == pytest.approx(first["again"])


@every_victim
def test_no_process_is_left_behind(victim, done):
    _, folder = done(victim)
    pids = [int(file.read_text()) for file in folder.glob("*.pid")]
    assert len(pids) == STAGES + 1
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_it_is_said_and_each_stage_has_its_own_checkpoints(tmp_path, capfd):
    assert returning.started(returning.twice, tmp_path, 1, grace_s=30.0) == 137
    told = capfd.readouterr().err
    assert "process 1 was ended by SIGKILL" in told
    assert "it alone is started again, 1 of at most 1 times" in told
    assert "hung" not in told  # the others have heard that nobody comes back any more
    for rank in range(STAGES):
        assert parts(tmp_path, rank)
    # The whole job goes on from what each stage has.
    assert returning.started(returning.resumed, tmp_path, None) == 0
    stages = said(tmp_path)
    for stage in stages:
        assert stage["began"] > 0
        assert not stage["learned"] or stage["learned"][-1] == TURNS - 1
    assert stages[0]["history"] == stages[2]["history"]
    assert len(stages[0]["history"]) == EPOCHS
    shutil.rmtree(parts(tmp_path, 1)[0].parent)
    assert returning.started(returning.resumed, tmp_path, None) != 0
    assert "there is no folder of a checkpoint in it" in capfd.readouterr().err


# Where it cannot come back alone, the whole job starts again.


def whole(lost, number, most):
    """That it is said that the whole job starts again."""
    words = f"{lost}; starting the whole job again from its last checkpoint, {number} of at"
    return pytest.warns(UserWarning, match=f"{words} most {most} times")


def test_one_that_does_not_come_back_has_the_whole_job_start_again(tmp_path, capfd):
    with whole("a process hung", 2, 2):
        assert returning.kept_up(returning.never_back, tmp_path, 1, most=2, grace_s=1.0) == 0
    told = capfd.readouterr().err
    assert "it alone is started again, 1 of at most 2 times" in told
    assert "waited 4 s for stage 1 to come back; stage 1 does not answer" in told
    for stage in said(tmp_path):
        assert stage["began"] > 0
        assert stage["learned"][-1:] in ([], [TURNS - 1])


def test_one_that_is_killed_before_all_are_out_has_the_whole_job_begin_anew(tmp_path, capfd):
    with whole("a process was killed by SIGKILL", 1, 1):
        assert returning.kept_up(partial(train, points=["made"]), tmp_path, 1, most=1) == 0
    assert "alone" not in capfd.readouterr().err
    for stage in said(tmp_path):
        assert stage["learned"] == list(range(TURNS))


def test_one_that_is_killed_before_its_first_part_is_there_does_not_begin_alone(
    tmp_path, capfd
):
    with whole("a process was gone", 2, 2):
        assert returning.kept_up(partial(train, points=["saved"]), tmp_path, 1, most=2) == 0
    told = capfd.readouterr().err
    assert "it alone is started again, 1 of at most 2 times" in told
    assert "stage 1 was started again alone, but was killed before its first" in told
    for stage in said(tmp_path):
        assert stage["learned"] == list(range(TURNS))


@pytest.mark.parametrize(
    ("victim", "points"),
    [(0, ["evaluation"]), (2, ["turn", "gathered"])],
    ids=["evaluation", "twice"],
)
def test_one_that_is_killed_after_all_have_met_has_the_whole_job_go_on_from_there(
    victim, points, tmp_path, capfd
):
    most = len(points)
    with whole("a process was killed by SIGKILL", most, most):
        assert returning.kept_up(partial(train, points=points), tmp_path, victim, most) == 0
    assert capfd.readouterr().err.count("it alone is started again") == most - 1
    first, *others = said(tmp_path)
    for other in others:
        for what in ("history", "weights", "again"):
            assert other[what] == first[what]
    assert [epoch["number"] for epoch in first["history"]] == list(range(EPOCHS))
    assert first["history"][-1]["score"]["loss"] == pytest.approx(first["again"])
    for stage in (first, *others):
        assert stage["began"] >= TURNS
        assert stage["learned"] == []


NETWORK = '''
import os, signal
from pathlib import Path
from torch import nn

class Dies(nn.Module):
    """Kills the first process when it tries a batch, and in its thirtieth of training."""

    seen = 0

    def forward(self, x):
        self.seen += self.training
        mark = Path("died" if self.training else "died-early")
        due = self.seen == 30 or not self.training
        if due and os.environ["RANK"] == "0" and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return x

def network():
    hidden = [nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32)]
    return nn.Sequential(nn.Flatten(), *hidden, Dies(), nn.ReLU(), nn.Linear(32, 10))
'''


@pytest.mark.filterwarnings("default")
def test_on_the_command_line(tmp_path, monkeypatch, capfd):
    """The first stage is killed, which reads the data and writes the run folder."""
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(NETWORK)
    words = "--epochs 3 --processes 2 --checkpoint-every 4 --max-restarts 2 --log-every 1"
    words += " --method dgl-async:head=mlp --network own.py:network --plan 5 --out run"
    assert main(["train", *words.split()]) == 0
    told = capfd.readouterr().err
    assert "starting the whole job again from its last checkpoint, 1 of at most 2 times" in told
    assert "it alone is started again, 2 of at most 2 times" in told
    summary = json.loads(Path("run/summary.json").read_text())
    assert (summary["state"], len(summary["epochs"])) == ("finished", 3)
    assert summary["epochs"][-1]["score"]["error"] < 0.5
    for file in ("metrics.jsonl", "metrics.stage1.jsonl"):
        rows = [json.loads(row) for row in Path("run", file).read_text().splitlines()]
        batches = [row["batch"] for row in rows if row["kind"] == "update"]
        assert batches == list(range(len(batches)))

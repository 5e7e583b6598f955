"""Processes that die in a given tick or save: the next launch ends with the bits of none dying.

Faults come by stage and tick, never by the clock.
"""

import os
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import distributed

from contract.small import conv, data, different, sgd
from hocket import Checkpoints, Trainer
from hocket.checkpoint import saver
from hocket.checkpoint.folder import newest_first, read_manifest, read_part
from hocket.launch import launch
from hocket.methods import FDG
from hocket.restart import persistently

STAGES = 3
BATCHES = 7

pytestmark = pytest.mark.xdist_group("faults and checkpoints")


def train(folder, watch=None, epochs=2):
    """The training, from the last checkpoint if there is one; its weights."""
    modules = conv(STAGES, dropout=0.3)
    trainer = Trainer(
        modules,
        method=FDG(),
        optimizer=partial(sgd, lr=0.01),
        resumable=True,
        watchers=[watch] if watch is not None else [],
    )
    kind = None
    if folder is not None:
        kind = Checkpoints(folder, every=2)
        if newest_first(folder):
            trainer.resume(folder)
    trainer.fit(data(conv, BATCHES), epochs=epochs, progress=False, checkpoints=kind)
    return [v for module in modules for v in module.state_dict().values()]


def whole():
    return train(None)


def end(mark, number):
    """Once only: the next launch finds the mark."""
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), number)


def dies_in_a_tick(folder, stage, tick, number):
    """What a process does; the one of a stage gets a signal in a tick."""
    place = Path(folder)
    rank = distributed.get_rank()

    def watch(event, _):
        if rank == stage and event.tick == tick:
            end(place / "mark", number)

    try:
        weights = train(place / "checkpoints", watch)
    except KeyboardInterrupt as stopped:
        return 128 + stopped.args[0]
    torch.save(weights, place / f"{rank}.pt")
    return 0


def dies_in_a_save(folder, stage, call):
    """What a process does; the one of a stage is killed before a step of a save."""
    calls = []

    def dying(own):
        def step(*words):
            calls.append(own)
            if distributed.get_rank() == stage and len(calls) == call:
                end(Path(folder) / "mark", signal.SIGKILL)
            return own(*words)

        return step

    for name in ("write", "publish", "retain"):
        setattr(saver, name, dying(getattr(saver, name)))
    return dies_in_a_tick(folder, -1, -1, 0)


def started(work, *arguments):
    return launch(work, *arguments, processes=STAGES, threads=1, grace_s=30.0)


def require_same(folder):
    for rank in range(STAGES):
        found = torch.load(folder / f"{rank}.pt", weights_only=True)
        assert not different(whole(), found)


@pytest.mark.parametrize("stage", range(STAGES))
@pytest.mark.parametrize("tick", [3, 8])
def test_one_that_is_killed_in_a_tick(stage, tick, tmp_path, capfd):
    words = (str(tmp_path), stage, tick, signal.SIGKILL)
    assert started(dies_in_a_tick, *words) == 137
    assert started(dies_in_a_tick, *words) == 0
    require_same(tmp_path)
    assert capfd.readouterr().err.count("was ended by SIGKILL") == 1


def test_a_job_that_lost_a_process_is_started_again(tmp_path):
    words = (str(tmp_path), 1, 5, signal.SIGKILL)
    with pytest.warns(UserWarning, match="killed by SIGKILL; starting again .* 1 of at most 3"):
        assert persistently(lambda again: started(dies_in_a_tick, *words), 3) == 0
    require_same(tmp_path)


@pytest.mark.parametrize(("stage", "call"), [(0, 5), (0, 6), (0, 7), (1, 2), (2, 3)])
def test_one_that_is_killed_in_a_save(stage, call, tmp_path, capfd):
    """Before it writes its part, before the first one seals them, or removes old ones."""
    assert started(dies_in_a_save, str(tmp_path), stage, call) == 137
    for place in newest_first(tmp_path / "checkpoints"):
        manifest = read_manifest(place)
        assert [read_part(place, part, manifest) for part in manifest.parts]
    assert started(dies_in_a_save, str(tmp_path), stage, call) == 0
    require_same(tmp_path)
    assert not list((tmp_path / "checkpoints").glob(".*"))
    assert "was ended by SIGKILL" in capfd.readouterr().err


def test_one_that_is_asked_to_end_has_all_leave_a_checkpoint(tmp_path):
    """The first one, by SIGTERM: all stop after the same tick, and go on from there."""
    words = (str(tmp_path), 0, 5, signal.SIGTERM)
    assert started(dies_in_a_tick, *words) == 143
    manifest = read_manifest(newest_first(tmp_path / "checkpoints")[0])
    assert manifest.tick > 5
    assert manifest.course["batches"] == manifest.tick < BATCHES + 1
    assert started(dies_in_a_tick, *words) == 0
    require_same(tmp_path)

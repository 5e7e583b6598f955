"""A trainer gives back what it took: threads, descriptors, memory, and the network."""

import gc
import os
import sys
import time
import weakref
from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise
from typing import Any

import pytest
import torch

from contract.processes import in_processes
from contract.small import METHODS, conv, data, mlp, sgd
from hocket import Trainer
from hocket.distributed.world import joined_worlds
from hocket.errors import HocketError

TRAININGS = 10
DISORDERLY = 8
"""Trainings that fail, or are forgotten; they are closed in the background."""
HALF = 40
"""Descriptors of half as many sets of process groups; these have fewer threads."""
TICKS = 100
ROUNDS = 8
METHODS_IN_TURN = ("fdg", "dgl", "fdg", "dgl-async", "fdg", "dni", "fdg", "adl", "fdg", "bp")
CLOSED = "this trainer is closed: its network remains, and everything else has to be done"
BATCHES = data(mlp, 2)

build = partial(Trainer, optimizer=partial(sgd, lr=1e-4), timeout_s=30.0)
USES: dict[str, Callable[[Trainer], Any]] = {
    "prepare": lambda trainer: trainer.prepare(BATCHES[0][0]),
    "step": lambda trainer: trainer.step(*BATCHES[0]),
    "end_epoch": lambda trainer: trainer.end_epoch(),
    "finish": lambda trainer: trainer.finish(),
    "fit": lambda trainer: trainer.fit(BATCHES, epochs=1),
    "saving": lambda trainer: trainer.saving(None).__enter__(),
    "save": lambda trainer: trainer.save("nowhere"),
    "resume": lambda trainer: trainer.resume("nowhere"),
    "evaluate": lambda trainer: trainer.evaluate(BATCHES),
    "gather": lambda trainer: trainer.gather(1),
    "timeline": lambda trainer: trainer.timeline(),
    "collect": lambda trainer: trainer.collect(),
    "state_dict": lambda trainer: trainer.state_dict(),
    "stages": lambda trainer: trainer.stages,
    "engine": lambda trainer: trainer.engine,
    "sent_bytes": lambda trainer: trainer.sent_bytes,
}


def refusal(trainer: Trainer, use: Callable[[Trainer], Any]) -> str:
    """Return the message with which a use of a trainer is refused."""
    try:
        use(trainer)
    except HocketError as error:
        return str(error)
    return "not refused"


def train(trainer: Trainer, net: Any = mlp) -> None:
    """Train for two batches."""
    trainer.fit(data(net, 2), epochs=1, progress=False)


def counts() -> list[int]:
    """Return the numbers of threads and of descriptors of this process."""
    return [len(os.listdir(f"/proc/self/{kind}")) for kind in ("task", "fd")]


def least_counts() -> list[int]:
    """Return the least counts for a while: the system forgets a thread after it has ended."""
    samples = []
    for _ in range(50):
        samples.append(counts())
        time.sleep(0.01)
    return [min(column) for column in zip(*samples, strict=True)]


def added_counts(before: list[int], allowed: int = 0) -> list[int]:
    """Return how much the counts have grown, at once if that is not more than is allowed."""
    end_s = time.monotonic() + 30
    while True:
        added = [now - then for now, then in zip(counts(), before, strict=True)]
        if max(added) <= allowed or time.monotonic() > end_s:
            return added
        time.sleep(0.01)


def growth_per_tick(trainer: Trainer) -> float:
    """Return the number of memory blocks that Python keeps of each tick, once warmed up.

    It is the least over some rounds: what else goes on in a process grows at times, too.
    """
    blocks = []
    for _ in range(ROUNDS):
        for _ in range(TICKS):
            trainer.step(*BATCHES[0])
        gc.collect()
        blocks.append(sys.getallocatedblocks())
    return min(now - before for before, now in pairwise(blocks)) / TICKS


def alive_after(use: Callable[[Trainer], None]) -> list[str]:
    """Train, use the trainer and drop it; return which of its parts are still there."""
    trainer = build(mlp(2), method=METHODS["fdg"]())
    train(trainer)
    parts = [trainer, trainer.engine, *trainer.stages, trainer.stages[0].updater]
    references = [(type(part).__name__, weakref.ref(part)) for part in parts]
    use(trainer)
    del trainer, parts
    for _ in range(50):  # another thread may be in the middle of a search for garbage
        gc.collect()
        alive = [name for name, reference in references if reference() is not None]
        if not alive:
            break
        time.sleep(0.01)
    return alive


def lose_a_batch(trainer: Trainer) -> str:
    """Train on a batch that breaks the last stage; return the type of the error here."""
    batches = data(mlp, 4)
    batches[2][0][:] = torch.nan
    try:
        with trainer:
            trainer.fit(batches, epochs=1, progress=False)
    except HocketError as error:
        return type(error).__name__
    return "none"


def in_a_world() -> dict[str, Any]:
    """Train in every way in this process of a world; return what is left."""
    found: dict[str, Any] = {}
    for name in METHODS_IN_TURN:  # the first of each kind may load libraries
        with build(mlp(2), method=METHODS[name]()) as trainer:
            train(trainer)
    before = least_counts()
    for number in range(TRAININGS):
        name = METHODS_IN_TURN[number % len(METHODS_IN_TURN)]
        with build(mlp(2), method=METHODS[name]()) as trainer:
            train(trainer)
    found["trainings"] = added_counts(before)
    trainer = build(mlp(2))
    train(trainer)
    trainer.close()
    trainer.close()
    found["refused"] = {name: refusal(trainer, use) for name, use in USES.items()}
    found["weights"] = [v.flatten().tolist() for v in trainer.network.state_dict().values()]
    found["alive"] = alive_after(Trainer.close)
    found["errors"] = [lose_a_batch(build(mlp(2))) for _ in range(DISORDERLY)]
    with build(mlp(2)) as trainer:
        found["growth"] = growth_per_tick(trainer)
        trainer.collect()
    joined_worlds.shutdown()  # waits until those after errors are closed
    found["failed trainings"] = added_counts(before, allowed=HALF)
    for _ in range(DISORDERLY):
        trainer = build(conv(2))
        train(trainer, conv)
    del trainer
    found["alive if forgotten"] = alive_after(lambda trainer: None)
    joined_worlds.shutdown()
    found["forgotten trainings"] = added_counts(before, allowed=HALF)
    return found


together = pytest.mark.xdist_group("closing")


@cache
def found():
    """Return what is left in each of two processes."""
    return in_processes(in_a_world, processes=2)


# In one process.


def test_a_closed_trainer_refuses_every_use():
    with build(mlp(2)) as trainer:
        train(trainer)
    for name, use in USES.items():
        assert refusal(trainer, use).startswith(CLOSED), name


def test_the_network_of_a_closed_trainer_stays_with_all_that_was_learned():
    trainer = build(mlp(2))
    train(trainer)
    before = {name: value.clone() for name, value in trainer.network.state_dict().items()}
    trainer.close()
    trainer.close()  # does nothing
    after = trainer.network.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before | after)
    assert (trainer.epoch, trainer.stage_count, trainer.process_name) == (1, 2, None)
    assert trainer.is_main_process
    with build(trainer.network, stages=2) as again:
        train(again)


def test_a_trainer_closes_itself_also_after_an_error():
    with pytest.raises(ValueError, match="mine"), build(mlp(2)) as trainer:
        raise ValueError("mine")
    assert refusal(trainer, Trainer.finish).startswith(CLOSED)


@pytest.mark.parametrize(
    "use", [Trainer.close, lambda trainer: None], ids=["closed", "dropped"]
)
def test_nothing_of_a_trainer_is_kept_alive(use):
    assert alive_after(use) == []


def test_a_closed_trainer_that_is_kept_has_no_stages():
    kept = []
    alive = alive_after(lambda trainer: (trainer.close(), kept.append(trainer)))
    assert alive == ["Trainer"]


@pytest.mark.parametrize("name", ["fdg", "dgl-async"])
def test_a_tick_leaves_nothing_in_memory(name):
    assert growth_per_tick(build(mlp(2), method=METHODS[name]())) < 0.5


# Among processes.


@together
def test_any_number_of_trainings_has_the_threads_and_descriptors_of_one():
    assert [max(process["trainings"]) <= 0 for process in found()] == [True, True]


@together
@pytest.mark.parametrize("which", ["failed trainings", "forgotten trainings"])
def test_trainings_that_fail_or_are_forgotten_do_not_pile_up(which):
    assert all(max(process[which]) <= HALF for process in found())
    assert [process["alive if forgotten"] for process in found()] == [[], []]


@together
def test_a_training_that_failed_has_the_same_error_every_time():
    errors = [process["errors"] for process in found()]
    assert errors == [["NonFiniteError"] * DISORDERLY, ["PeerFailedError"] * DISORDERLY]


@together
def test_among_processes_a_closed_trainer_refuses_every_use_and_leaves_the_whole_network():
    with build(mlp(2)) as alone:
        train(alone)
    for process in found():
        assert process["refused"].keys() == USES.keys()
        assert all(text.startswith(CLOSED) for text in process["refused"].values())
        weights = [v.flatten().tolist() for v in alone.network.state_dict().values()]
        assert process["weights"] == weights
        assert process["alive"] == []


@together
def test_among_processes_a_tick_leaves_nothing_in_memory():
    growth = [process["growth"] for process in found()]
    assert max(growth) < 0.5, growth

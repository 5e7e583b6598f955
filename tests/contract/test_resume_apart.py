"""Resumed among processes = uninterrupted: equal bits, whoever wrote the checkpoint."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy
import pytest

from contract.processes import in_processes
from contract.resumed import CASES, all_of, differences, resumable
from contract.small import LOCKSTEP
from contract.worlds import Case, Left, distinct, trained
from hocket.checkpoint.directory import Manifest, newest_first, read_manifest

APART = distinct([*CASES[: len(LOCKSTEP)], *CASES[len(LOCKSTEP) + 2 :: 3]])
WORLDS = {
    2: APART[len(LOCKSTEP) :: 2],
    3: [*APART[: len(LOCKSTEP)], *APART[len(LOCKSTEP) + 1 :: 2]],
}
every_case = pytest.mark.parametrize(
    ("case", "stages"),
    [
        pytest.param(
            case, k, marks=pytest.mark.xdist_group(f"resumed in {k}"), id=f"{case}-{k}"
        )
        for k, cases in WORLDS.items()
        for case in cases
    ],
)


def seed_loaders() -> None:
    """Begin with equal random numbers of loaders, which are in a checkpoint, too."""
    random.seed(0)
    numpy.random.seed(0)


def _work(folder: Path, cases: Sequence[Case], stages: int) -> list[tuple[Left, Left]]:
    """Leave checkpoints, and go on from some of them."""
    found = []
    for number, case in enumerate(cases):
        own = folder / f"{number}-apart"
        seed_loaders()
        whole, checkpoints = all_of(case, stages, own)
        # Within the last epoch and within the first one in turn.
        late = number % 2 == 0 or case.batches == 1
        found.append((whole, trained(case, stages, resume=checkpoints[2 if late else -2])))
    return found


@dataclass
class Done:
    """What a case has left in one process, and in several with their resumed trainings."""

    alone: Path
    apart: Path
    whole: Left
    processes: list[tuple[Left, Left]]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """All cases in worlds of so many stages, each started once."""
    return cache(lambda stages: all_in(tmp_path_factory.mktemp("apart"), stages))


def all_in(folder: Path, stages: int) -> dict[Case, Done]:
    """All cases in one world."""
    found = {}
    left = in_processes(_work, folder, WORLDS[stages], stages, processes=stages)
    for number, case in enumerate(WORLDS[stages]):
        seed_loaders()
        alone, apart = (folder / f"{number}-{kind}" for kind in ("alone", "apart"))
        whole, _ = all_of(case, stages, alone)
        found[case] = Done(alone, apart, whole, [each[number] for each in left])
    return found


@every_case
def test_processes_go_on_as_if_they_had_never_stopped(case, stages, done):
    found = done(stages)[case]
    for uninterrupted, resumed in found.processes:
        assert not differences(found.whole, uninterrupted)
        assert not differences(found.whole, resumed)


@every_case
def test_several_processes_leave_the_checkpoints_of_one_and_are_told_of_each(
    case, stages, done
):
    """Equal bytes, so that each goes on with those of the other; times differ."""
    found = done(stages)[case]
    complete = sorted(path.name for path in found.apart.iterdir())
    assert [left.checkpoints for left, _ in found.processes] == [complete] * stages
    apart, alone = newest_first(found.apart), newest_first(found.alone)
    assert [place.name for place in apart] == [place.name for place in alone]
    for pair in zip(apart, alone, strict=True):
        ours, theirs = map(read_manifest, pair)
        assert without_times(ours) == without_times(theirs), pair[0].name


def without_times(manifest: Manifest) -> object:
    """A manifest, and with it the digests of all files, without seconds."""
    history = [epoch | {"seconds": 0.0} for epoch in manifest.fit["history"]]
    return replace(manifest, fit=manifest.fit | {"seconds": 0.0, "history": history})


REPLICATED = resumable(
    Case("fdg", "conv", trainer=(("replicas", 2), ("batchnorm", "shared")), last=4)
)


@pytest.mark.xdist_group("resumed in replicas")
def test_replicas_go_on_as_if_they_had_never_stopped(tmp_path):
    for ((whole, resumed),) in in_processes(_work, tmp_path, [REPLICATED], 2, processes=4):
        assert not differences(whole, resumed)

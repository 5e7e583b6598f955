"""Resumed among processes = uninterrupted: equal bits, whoever wrote the checkpoint."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import distributed

from contract.resumed import CASES, EVERY, all_of, differences, resumable
from contract.small import LOCKSTEP
from contract.worlds import Case, Left, trained
from hocket import Checkpoints
from hocket.checkpoint.directory import checkpoint_name
from hocket.distributed.launching.launch import launch
from hocket.methods import METHODS
from hocket.program import Program, enter

APART = [*CASES[: len(LOCKSTEP)], *CASES[len(LOCKSTEP) + 2 :: 3]]
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


def after(batches: int, epoch: int, case: Case, stages: int) -> str:
    """Name of the checkpoint after so many batches, one of which may take several ticks."""
    program = Program(METHODS[case.method](**dict(case.options)), stages)
    return checkpoint_name(sum(1 for _ in range(batches) for _ in enter(program)), epoch)


def places(case: Case, stages: int) -> list[str]:
    """Some checkpoints of a case: in an epoch that other batches overtake, and at its end."""
    if dict(case.options).get("epoch_end") == "drain":  # nothing overtakes
        return [checkpoint_name(2, 0)]
    if case.batches == 1:
        return [checkpoint_name(2, 1), checkpoint_name(4, 4)]
    return [after(2, 0, case, stages), after(5, 1, case, stages)]


def _work(folder: str, cases: Sequence[Case], stages: int) -> int:
    """Leave checkpoints, and go on from them and from those that one process has left."""
    rank = distributed.get_rank()
    for number, case in enumerate(cases):
        own, alone = Path(folder, f"{number}-apart"), Path(folder, f"{number}-alone")
        left = {"": trained(case, stages, Checkpoints(own, every=1, keep=EVERY))}
        for place in places(case, stages):
            for kind, checkpoints in (("apart", own), ("alone", alone)):
                left[f"{kind} {place}"] = trained(case, stages, resume=checkpoints / place)
        torch.save(left, Path(folder) / f"{number}-{rank}.pt")
    return 0


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """All cases in worlds of so many stages, each started once."""
    return cache(lambda stages: all_in(tmp_path_factory.mktemp("apart"), stages))


def all_in(
    folder: Path, stages: int
) -> tuple[dict[Case, tuple[Left, list[dict[str, Left]]]], Path]:
    """All cases in one world: what one process has, and what each of several has."""
    whole = {
        case: all_of(case, stages, folder / f"{number}-alone")[0]
        for number, case in enumerate(WORLDS[stages])
    }
    assert launch(_work, str(folder), WORLDS[stages], stages, processes=stages, threads=1) == 0
    found = {
        case: (
            whole[case],
            [
                torch.load(folder / f"{number}-{rank}.pt", weights_only=False)
                for rank in range(stages)
            ],
        )
        for number, case in enumerate(WORLDS[stages])
    }
    return found, folder


@every_case
def test_processes_go_on_as_if_they_had_never_stopped(case, stages, done):
    whole, processes = done(stages)[0][case]
    for left in processes:
        assert len(left) == 1 + 2 * len(places(case, stages))
        for name, resumed in left.items():
            assert not differences(whole, resumed), name


@every_case
def test_every_process_is_told_of_every_checkpoint_that_is_complete(case, stages, done):
    found, folder = done(stages)
    own = folder / f"{WORLDS[stages].index(case)}-apart"
    complete = sorted(path.name for path in own.iterdir())
    assert [left[""].checkpoints for left in found[case][1]] == [complete] * stages


@every_case
def test_one_process_goes_on_with_what_several_have_left(case, stages, done):
    found, folder = done(stages)
    own = folder / f"{WORLDS[stages].index(case)}-apart"
    for place in places(case, stages):
        resumed = trained(case, stages, resume=own / place)
        assert not differences(found[case][0], resumed), place


REPLICATED = resumable(
    Case("fdg", "conv", trainer=(("replicas", 2), ("batchnorm", "shared")), last=4)
)


def _in_replicas(folder: str) -> int:
    """Leave checkpoints, and go on from one."""
    own = Path(folder, "checkpoints")
    whole = trained(REPLICATED, 2, Checkpoints(own, every=1, keep=EVERY))
    resumed = trained(REPLICATED, 2, resume=own / checkpoint_name(4, 1))
    assert not differences(whole, resumed)
    return 0


@pytest.mark.xdist_group("resumed in replicas")
def test_replicas_go_on_as_if_they_had_never_stopped(tmp_path):
    assert launch(_in_replicas, str(tmp_path), processes=4, threads=1) == 0

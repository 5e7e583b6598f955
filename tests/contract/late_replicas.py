"""Trainings whose replicas are late or meet rarely, in a module that processes import fast."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, distributed

from contract.small import Trained, data, mlp, train
from contract.worlds import Case, Left, trained
from hocket import Checkpoints
from hocket.checkpoint.directory import newest_first
from hocket.methods import FDG
from hocket.remedies import Compensate, GapAware, Predict, StalenessRate

PROCESSES = 4  # of two stages with two replicas, or of one stage with four
DELAYED = ("replica_delay", 1)
MEET = "diloco:every=3,outer_lr=0.5,fragments=2,overlap=1"
CASES = [
    (2, Case("fdg", trainer=(DELAYED,))),
    (2, Case("fdg", "conv", trainer=(("replica_delay", 3),))),
    (2, Case("adl", options=(("accumulate", 3),), trainer=(DELAYED,))),
    (2, Case("fdg", "conv", trainer=(("meet", "local-sgd:every=2"),))),
    (2, Case("adl", options=(("accumulate", 2),), trainer=(("meet", "diloco:every=2"),))),
    (2, Case("fdg", trainer=(("meet", MEET),))),
    (1, Case("bp", "conv", batches=6, trainer=(("meet", "diloco:every=3"),))),
]
RESUMED = [
    CASES[2],
    CASES[5],
    (2, Case("dni", trainer=(DELAYED,))),
    (2, Case("pipedream-2bw", options=(("accumulate", 2),), trainer=(DELAYED,))),
    (2, Case("dgl", "conv", trainer=(("meet", MEET),))),
]
"""Trainings with something under way; the twin does not know all of their methods."""
SUMMED = [
    (2, Case("fdg", "conv", batches=5)),
    (2, Case("dni", batches=5)),
    (2, Case("adl", options=(("accumulate", 2),), trainer=(("codec", "int8"),), batches=5)),
    (2, Case("bp", trainer=(("meet", "local-sgd:every=9"),), batches=5, shuffled=True)),
]
"""Trainings of two epochs with dropout; those that meet do so within the second one."""
ALL = list(dict.fromkeys([*CASES, *RESUMED, *SUMMED]))
REMEDIES = [StalenessRate(), Compensate(), GapAware(), Predict()]


def with_replicas(stages: int, case: Case) -> Case:
    """The case, short and with replicas; without dropout, which the twin does not have."""
    more = (("replicas", PROCESSES // stages), ("resumable", True))
    lasting = (stages, case) in SUMMED
    dropout, epochs = (case.dropout, 2) if lasting else (0.0, 1)
    return replace(case, dropout=dropout, epochs=epochs, last=4, trainer=(*case.trainer, *more))


def train_here(folder: Path) -> dict[Any, Left]:
    """Train each case; those to resume leave checkpoints in a folder by their number."""
    left = {}
    for number, (stages, case) in enumerate(ALL):
        is_kept = (stages, case) in RESUMED
        kept = Checkpoints(folder / str(number), every=4, keep=9) if is_kept else None
        with patch("os.fsync"):  # the machine stays on
            left[stages, case] = trained(with_replicas(stages, case), stages, kept)
    return left


def resumed_here(stages: int, case: Case, folder: Path) -> Left:
    """Go on with a case from the first checkpoint on its way."""
    checkpoint = newest_first(folder / str(ALL.index((stages, case))))[-1]
    return trained(with_replicas(stages, case), stages, resume=checkpoint)


def train_all(
    apart: Path, alone: Path
) -> tuple[dict[Any, Left], list[dict[Any, Left]], list[Any]]:
    """Train each case; go on from checkpoints of all and of one; train with each remedy."""
    left = train_here(apart)
    distributed.barrier()
    resumed = [{each: resumed_here(*each, own) for each in RESUMED} for own in (apart, alone)]
    corrected = []
    alike = [(torch.cat([x] * 4), torch.cat([y] * 4)) for x, y in data(mlp, 7)]
    for remedy in REMEDIES:
        method = FDG(linearize="stash").with_remedies(remedy)
        corrected.append(seen(train(method, mlp(1), alike, replicas=4, replica_delay=2)))
    return left, resumed, corrected


def seen(done: Trained) -> tuple[list[Tensor], float]:
    """Weights of the first stage, and its staleness."""
    weights = done.trainer.stages[0].module.state_dict().values()
    return list(weights), done.history[0].staleness[0]

"""Trainings that leave a checkpoint after every tick, and what going on from one must give."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from contract.small import LINEARIZE, LOCKSTEP, WAITING, bits, different
from contract.worlds import Case, Left, trained
from hocket import Checkpoints
from hocket.checkpoint.directory import newest_first
from hocket.codecs import VQ, Cast, Integers
from hocket.methods import method_options
from hocket.remedies import (
    T1,
    T2,
    CompensateAdaptively,
    GapAware,
    Predict,
    SpikeCompensation,
    StalenessRate,
)

EVERY = 10**6
"""More than a test's checkpoints."""
PACES = [(1.0, 0.7, 1.4), (1.0, 1.0, 0.6), (0.6, 1.0, 1.0)]
"""Of three stages that run freely."""


def resumable(case: Case) -> Case:
    """The case with checkpoints, and fewer batches."""
    options = dict(case.trainer) | {"resumable": True}
    return replace(case, trainer=tuple(options.items()), batches=min(case.batches, 3))


LINEARIZED = [
    Case(name, "conv", (("linearize", kind),))
    for name in WAITING
    if "linearize" in method_options(name)
    for kind in LINEARIZE
]
CASES = [
    *(Case(name, "conv") for name in LOCKSTEP),
    *LINEARIZED,
    *(Case(name, "conv", (("recompute", True),)) for name in ("gpipe", "1f1b")),
    Case("1f1b", "conv", (("accumulate", 5),)),
    Case("fdg", options=(("order", "forward-first"),)),
    Case("fdg", "conv", options=(("epoch_end", "drain"),)),
    Case("adl", "conv", options=(("accumulate", 3), ("linearize", "live"))),
    Case("adl", options=(("accumulate", 3), ("reduce", "sum"))),
    Case("fdg", "conv", options=(("forward_delay", 2), ("backward_delay", 3))),
    Case("dgl", options=(("forward_delay", 3),)),
    Case("dni", options=(("forward_delay", 2),)),
    Case("pipedream", "conv", options=(("hold", "vertical"), ("epoch_end", "carry"))),
    Case("pipedream-2bw", "conv", options=(("accumulate", 3),)),
    Case("adl", options=(("accumulate", 5), ("hold", "double"))),
    Case("adl", options=(("accumulate", 3),), remedies=(StalenessRate(), T1(anneal=3))),
    *(
        Case("fdg", "conv", (("linearize", kind),), remedies=(Predict(direction=direction),))
        for kind in LINEARIZE
        for direction in ("steady", "last")
    ),
    Case("adl", options=(("accumulate", 3), ("epoch_end", "drain")), remedies=(Predict(),)),
    Case("fdg", optimizer=torch.optim.Adam, remedies=(Predict(direction="decaying"),)),
    Case("fdg", remedies=(SpikeCompensation(), Predict(direction="last"))),
    Case("fdg", "conv", (("linearize", "live"),), remedies=(GapAware(), T1(anneal=3))),
    *(
        Case("fdg", "conv", (("linearize", kind),), remedies=(T2(),))
        for kind in ("live", "recompute")
    ),
    *(
        Case("fdg", "conv", (("linearize", kind),), remedies=(CompensateAdaptively(),))
        for kind in LINEARIZE
    ),
    Case("fdg", optimizer=torch.optim.Adam),
    Case("fdg", trainer=(("scheduler_unit", "update"),)),
    Case("fdg", "conv", trainer=(("channels_last", True),)),
    Case("fdg", trainer=(("precision", "bf16"),), options=(("linearize", "stash"),)),
    Case("dgl", "conv", trainer=(("precision", "fp16"),)),
    Case("fdg", "conv", trainer=(("codec", Cast(torch.bfloat16)),)),
    Case("fdg", trainer=(("codec", Integers()),)),
    Case("dgl", "conv", trainer=(("codec", VQ(codes=3)), ("channels_last", True))),
    Case("dgl", trainer=(("codec", VQ(codes=3, every=2, decay=0.5)),)),
    # Epochs with fewer batches than there are stages: each is in flight over several of them.
    Case("fdg", batches=1, last=4, epochs=5),
    Case("petra", "coupled", options=(("accumulate", 2),)),
    Case("petra", "coupled", remedies=(T2(),)),
    Case("dgl", "conv", options=(("reach", 1),)),
    Case("dgl", "conv", options=(("infopro", (3, 0, 0, 1)), ("forward_delay", 2))),
    *(Case(name, "everything") for name in ("fdg", "fr")),
]
CASES = [resumable(case) for case in CASES]


def free(
    *options: tuple[str, Any], stage_speeds: Sequence[float] = PACES[0], **trainer: Any
) -> Case:
    """A training of three stages that run freely, each at its own pace."""
    return resumable(
        Case("dgl-async", "conv", options, (("stage_speeds", stage_speeds), *trainer.items()))
    )


FREE = [
    *(
        free(("buffer", n), stage_speeds=rates)
        for n, rates in zip((1, 2, 4), PACES, strict=True)
    ),
    free(("buffer", 3), ("reuse", 2), scheduler_unit="update"),
    free(("buffer", 2), ("reuse", 3), stage_speeds=PACES[1]),
    free(("buffer", 3), ("accumulate", 4), stage_speeds=PACES[2]),
    free(("buffer", 2), codec=VQ(codes=3, every=2, decay=0.5)),
    replace(free(("buffer", 4)), net="mlp", optimizer=torch.optim.Adam, batches=1, epochs=4),
]


def all_of(case: Case, stages: int, folder: Path) -> tuple[Left, list[Path]]:
    """A training that was never stopped, and a checkpoint of each of its ticks."""
    with patch("os.fsync"):  # the machine stays on
        left = trained(case, stages, Checkpoints(folder, every=1, keep=EVERY))
    return left, newest_first(folder)


def differences(whole: Left, resumed: Left) -> list[str]:
    """What a resumed training has that an uninterrupted one has not; empty if nothing."""
    found = different(whole.weights, resumed.weights)
    later = whole.evaluations[len(whole.evaluations) - len(resumed.evaluations) :]
    found += [f"evaluations: {resumed.evaluations}"] * (later != resumed.evaluations)
    found += [f"metrics: {resumed.history}"] * (str(whole.history) != str(resumed.history))
    for stage, events in resumed.events.items():
        if whole.events[stage][-len(events) :] != events:
            found.append(f"events of stage {stage}: {events}")
    for stage, optimizers in resumed.optimizers.items():
        if bits(optimizers) != bits(whole.optimizers[stage]):
            found.append(f"optimizers of stage {stage}")
        if whole.ledgers[stage] != resumed.ledgers[stage]:
            found.append(f"ledger of stage {stage}: {resumed.ledgers[stage]}")
        if whole.uses.get(stage) != resumed.uses.get(stage):
            found.append(f"uses of stage {stage}: {resumed.uses[stage]}")
        found += different(whole.signals[stage], resumed.signals[stage])
    return found

"""Serial = distributed: equal bits of weights, optimizers, metrics and events."""

from dataclasses import replace
from functools import cache, partial
from math import nan

import pytest
import torch

from contract.small import LINEARIZE, LOCKSTEP, bits, different, far
from contract.spoiled import BACKWARD, FORWARD
from contract.worlds import NETS, Case, Left, distinct, trained, trained_apart
from hocket.codecs import VQ, Cast, Integers
from hocket.remedies import (
    T1,
    T2,
    T3,
    Compensate,
    CompensateAdaptively,
    DropLate,
    GapAware,
    Predict,
    SpikeCompensation,
    StalenessRate,
)

CODECS = [Cast(torch.bfloat16), Cast(torch.float16), Integers()]
SKIPPING = (("on_nan", "skip"),)
BROKEN = {"trainer": SKIPPING, "spoiled": ((2, nan), (5, 1 + BACKWARD))}
CASES = [
    *(Case(name, net) for name in LOCKSTEP for net in NETS),
    *(
        Case(name, net, (("linearize", kind),))
        for name in ("fdg", "ddg", "adl")
        for net in NETS
        for kind in LINEARIZE
    ),
    Case("fdg", options=(("order", "forward-first"),)),
    Case("fdg", options=(("epoch_end", "drain"),)),
    Case("pipedream", options=(("hold", "vertical"),)),
    Case("fdg", remedies=(StalenessRate(), T1(anneal=3))),
    *(
        Case("fdg", net, (("linearize", kind),), remedies=(Predict(direction=direction),))
        for net, kind, direction in (
            ("conv", "stash", "steady"),
            ("mlp", "live", "decaying"),
            ("conv", "recompute", "last"),
        )
    ),
    Case("adl", options=(("accumulate", 3), ("epoch_end", "drain")), remedies=(Predict(),)),
    Case("fdg", "conv", (("linearize", "live"),), remedies=(T2(),)),
    Case("fdg", "conv", remedies=(Compensate(), StalenessRate())),
    Case("fdg", remedies=(SpikeCompensation(), Predict(direction="last"))),
    Case("fdg", "conv", remedies=(GapAware(), Compensate())),
    Case("adl", options=(("linearize", "recompute"),), remedies=(CompensateAdaptively(),)),
    Case("fdg", options=(("linearize", "recompute"),), remedies=(T2(decay=0.5), T1(anneal=3))),
    Case("fdg", remedies=(T3(updates=2), T1(anneal=3))),
    Case("adl", "conv", (("accumulate", 2),), remedies=(T3(updates=2), Predict())),
    Case("adl", "conv", options=(("accumulate", 5), ("hold", "double"))),
    *(Case(name, "conv", (("recompute", True),)) for name in ("gpipe", "1f1b")),
    Case("1f1b", options=(("accumulate", 3), ("epoch_end", "drain"))),
    Case("1f1b", "everything", (("accumulate", 2),)),
    Case("gpipe", "conv", (("accumulate", 2),), (("codec", Integers()),)),
    Case("adl", options=(("accumulate", 3), ("epoch_end", "drain"))),
    Case("fdg", options=(("forward_delay", 2), ("backward_delay", 3))),
    Case("dgl", options=(("forward_delay", 3),)),
    Case("dgl", "conv", options=(("head", "mlp"), ("width", 0.5), ("depth", 1))),
    Case("dgl", options=(("similarity", 0.9),)),
    Case("dgl", "wide", options=(("similarity", 0.99), ("head", "mlp"), ("depth", 0))),
    Case("fdg", "conv", trainer=(("channels_last", True),)),
    Case("fdg", trainer=(("precision", "bf16"),), options=(("linearize", "stash"),)),
    Case("fdg", trainer=(("precision", "fp16"),), options=(("linearize", "stash"),)),
    Case("dgl", "conv", trainer=(("precision", "fp16"),)),
    *(Case("fdg", "conv", trainer=(("codec", codec),)) for codec in CODECS),
    Case("dgl", "conv", trainer=(("codec", VQ(codes=3)), ("channels_last", True))),
    Case("dgl", trainer=(("codec", VQ(codes=3, every=2, decay=0.5)),)),
    # Stages that are parts of one network's forward.
    *(Case(name, "skips") for name in ("bp", "fdg", "fr")),
    Case("ddg", "skips", options=(("linearize", "live"),)),
    # Edges over which goes all that may be sent, views of weights among it.
    *(Case(name, "everything") for name in ("bp", "ddg", "adl", "dsp", "fr")),
    Case("fdg", "everything", trainer=(("codec", Integers()),)),
    # Tensors by ways of their own, beside their headers.
    Case("fdg", "conv", trainer=(("channels_last", True),), direct=True),
    Case("dni", direct=True),
    Case("fr", trainer=(("codec", Cast(torch.bfloat16)),), direct=True),
    # Batches that are skipped, from the first stage on, or where they break in a later one.
    *(
        Case(name, "brittle", trainer=SKIPPING, spoiled=((2, nan), (5, 1 + FORWARD)))
        for name in ("bp", "fdg", "adl", "fr", "gpipe", "dni", "dgl")
    ),
    *(Case(name, "brittle", **BROKEN) for name in ("fdg", "dni", "dgl")),
    Case("fdg", "brittle", **BROKEN, remedies=(Compensate(), StalenessRate())),
    Case("fdg", "brittle", **BROKEN, remedies=(Predict(direction="last"), SpikeCompensation())),
    Case("fdg", "conv", trainer=(*SKIPPING, ("codec", Integers())), spoiled=((2, nan),)),
    Case("dgl", "conv", trainer=(*SKIPPING, ("codec", VQ(codes=3))), spoiled=((2, nan),)),
    # Faults that are looked for in every third tick only.
    *(
        Case(name, "conv", trainer=(("check_every", 3),))
        for name in ("bp", "fdg", "fr", "1f1b", "dni")
    ),
    # Epochs with fewer batches than there are stages: each is in flight over several of them.
    Case("fdg", batches=1, last=4, epochs=5),
    Case("dgl", batches=2, epochs=4),
    # A stop that one process asks for.
    Case("fdg", epochs=4, stopped_by=1),
    # A number of updates, with evaluations in between.
    Case("adl", batches=5, budget=(("updates", 4), ("evaluate_every", 1))),
    Case("gpipe", batches=5, budget=(("updates", 4), ("evaluate_every", 1))),
    Case("fdg", batches=3, budget=(("updates", 7), ("evaluate_every", 3))),
    # Gradients that are dropped, and stages that compute their inputs from their outputs.
    Case("petra", "coupled", options=(("accumulate", 2),), trainer=(("codec", Integers()),)),
    Case("adl", options=(("accumulate", 8),), remedies=(DropLate(limit=0), StalenessRate())),
    Case("petra", "coupled", trainer=(("on_nan", "skip"),), spoiled=((2, nan),)),
]
# One process alone has the serial engine, whatever could cross an edge if there was one. Three
# have every kind of neighbours: there each method trains on maps, and in two on vectors. Four
# also have two that are neither first nor last, on each fifth of the cases, and gradients that
# stop between them.
ON_MAPS = [Case(name, "conv") for name in LOCKSTEP]
UNEVEN = [Case("fdg", "conv", profile=(5, 2, 2, 0)), Case("fr", profile=(4, 3, 0, 0))]
INVERTED = [Case("petra", "coupled"), Case("petra", "coupled", remedies=(Compensate(),))]
IN_REACH = [
    Case("dgl", "conv", options=(("reach", 1),)),
    Case("dgl", "conv", options=(("infopro", (3, 0, 0, 1)), ("reach", 2))),
    Case("dgl", options=(("reach", 2),), trainer=(("codec", Integers()),)),
    Case("dgl", "brittle", options=(("reach", 2),), **BROKEN),
]
DISTINCT = distinct(CASES)
WORLDS = {
    1: CASES[:3],
    2: [case for case in DISTINCT if case not in ON_MAPS],
    3: ON_MAPS,
    4: DISTINCT[::5] + UNEVEN + INVERTED + IN_REACH,
}


@cache
def apart(stages: int) -> dict[Case, list[Left]]:
    """All cases in one world, as starting one takes longer than a training."""
    return trained_apart(WORLDS[stages], stages)


@pytest.mark.parametrize(
    ("case", "stages"),
    [
        # All of one world to one worker of pytest, as each would start it anew.
        pytest.param(case, k, marks=pytest.mark.xdist_group(f"world of {k}"), id=f"{case}-{k}")
        for k, cases in WORLDS.items()
        for case in cases
    ],
)
def test_every_process_has_what_the_serial_engine_has(case, stages):
    alone = trained(case, stages)
    processes = apart(stages)[case]
    for left in processes:
        assert str(left.history) == str(alone.history)  # as text, nan equals nan
        assert left.evaluations == alone.evaluations
        assert different(left.weights, alone.weights) == []
    assert {k for left in processes for k in left.events} == set(range(stages))
    for stage, left in enumerate(processes):
        assert left.events == {stage: alone.events[stage]}
        assert bits(left.optimizers[stage]) == bits(alone.optimizers[stage])


alike = partial(Case, dropout=0.0, last=3)
WEIGHTED = torch.nn.CrossEntropyLoss(torch.tensor([1.0, 1, 9]).double(), ignore_index=1)
# Methods with auxiliary networks have BatchNorm in those.
REPLICATED = [
    *(alike(name) for name in ("bp", "ddg", "fdg", "adl", "fr", "dsp", "gpipe")),
    *(alike(name, "conv") for name in ("bp", "fdg", "dsp", "dgl", "dni")),
    alike("fdg", "conv", direct=True),
    alike("petra", "coupled"),
    alike("adl", trainer=(("clip", "batch:0.2"),)),
    alike("fdg", remedies=(Compensate(),)),
    alike("fdg", remedies=(Predict(direction="last"),)),
    # The first replica has ignored targets only, or most of them.
    *(alike(name, "conv", ignored=2) for name in ("fdg", "dgl")),
    # The loss leaves out a class and weighs others, of which replicas have different numbers.
    alike("fdg", "conv", trainer=(("loss", WEIGHTED),)),
]


def with_replicas(case: Case) -> Case:
    return replace(case, trainer=(*case.trainer, ("replicas", 2), ("batchnorm", "shared")))


@cache
def replicated() -> dict[Case, list[Left]]:
    return trained_apart([with_replicas(case) for case in REPLICATED], stages=2, replicas=2)


@pytest.mark.xdist_group("world of replicas")
@pytest.mark.parametrize("case", REPLICATED, ids=str)
def test_replicas_are_the_larger_batch(case):
    """Close in float64: each has its share of every batch, also where the shares differ."""
    alone = trained(case, stages=2)
    for left in replicated()[with_replicas(case)]:
        assert far(left.weights, alone.weights, tolerance=1e-8) == []
        losses = [epoch["loss"] for epoch in left.history]
        assert losses == pytest.approx([epoch["loss"] for epoch in alone.history], rel=1e-6)


# Where there is a GPU for each process they use NCCL, else they share one over the host.
ON_GPUS = [
    Case(name, "conv", dropout=0.0, trainer=(("device", "cuda"),))
    for name in ("bp", "fdg", "fr", "dni", "dgl")
]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.xdist_group("world on GPUs")
def test_on_gpus_processes_have_what_one_process_has():
    """Close in float64: kernels may add in another order each time."""
    apart = trained_apart(ON_GPUS, stages=2)
    for case in ON_GPUS:
        alone = trained(case, stages=2)
        for left in apart[case]:
            assert far(left.weights, alone.weights, tolerance=1e-8) == []

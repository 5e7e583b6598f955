"""Every method against its naive transcription from the paper: weights, statistics, losses."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import pytest
from torch import Tensor, nn

from contract.small import (
    CLASSES,
    LINEARIZE,
    ORDERS,
    SGD,
    Batches,
    conv,
    copied,
    data,
    different,
    far,
    mlp,
    outcome,
    sgd,
    train,
    wide,
)
from hocket import Trainer, cross_entropy
from hocket.methods import (
    ADL,
    BP,
    DDG,
    DGL,
    DNI,
    DSP,
    FDG,
    FR,
    PACI,
    GPipe,
    OneFOneB,
    PipeDream,
    PipeDream2BW,
    build_method,
)
from hocket.methods.method import Method
from reference import (
    adl,
    bp,
    ddg,
    dgl,
    dni,
    dsp,
    fdg,
    flushed,
    fr,
    held,
    infopro,
    pipedream,
    predsim,
    reach,
)

networks = pytest.mark.parametrize(("net", "stages"), [(mlp, 2), (mlp, 4), (conv, 3)])
Reference = Callable[..., list[float]]
Pairs = list[tuple[Method, Reference]]
RECOMPUTE = {"recompute": [False, True]}
BACKWARDS = {"linearize": LINEARIZE, "order": ORDERS}


def every(
    method: Callable[..., Method], reference: Reference, **choices: Sequence[Any]
) -> Pairs:
    """The method and its reference at each combination of the choices."""
    pairs = []
    for values in product(*choices.values()):
        options = dict(zip(choices, values, strict=True))
        pairs.append((method(**options), partial(reference, **options)))
    return pairs


# The same whatever the stages, by the delay of all their gradients on so many of them.
HELD = [
    (PipeDream2BW(accumulate=3), lambda stages: 1),
    (PipeDream2BW(accumulate=4, backward_delay=1), lambda stages: 1),
    (ADL(hold="double", accumulate=5), lambda stages: 1),
    (ADL(hold="double", accumulate=6, order="forward-first"), lambda stages: 1),
    (PipeDream(hold="vertical"), lambda stages: stages - 1),
    (ADL(hold="vertical", accumulate=1), lambda stages: 2 * stages - 3),
]
PAIRS: Pairs = [  # every method that waits
    (BP(), bp.train),
    *every(GPipe, partial(flushed.train, order=flushed.gpipe), accumulate=[5], **RECOMPUTE),
    *every(OneFOneB, flushed.train, accumulate=[5], **RECOMPUTE),
    *every(PipeDream, pipedream.train, linearize=LINEARIZE),
    *every(PACI, pipedream.train, accumulate=[3], linearize=LINEARIZE),
    *every(FR, fr.train, order=ORDERS),
    *every(DSP, dsp.train, order=ORDERS),
    *every(DDG, ddg.train, **BACKWARDS),
    *every(FDG, fdg.train, shrink=[0.7], **BACKWARDS),
    *every(ADL, adl.train, accumulate=[2], reduce=["sum"], **BACKWARDS),
    *every(ADL, adl.train, accumulate=[5], **BACKWARDS),
    (build_method("fr-official"), partial(fr.train, first_rate=2.0, statistics_twice=True)),
    (
        build_method("adl-official"),
        partial(adl.train, accumulate=4, reduce="sum", linearize="live"),
    ),
    *(
        (method, partial(held.train, accumulate=method.accumulate, delay=delay))
        for method, delay in HELD
    ),
]
NAMES = [f"{m.name} {m.linearize} {m.order} {m.hold} {m.accumulate}" for m, _ in PAIRS]


@networks
@pytest.mark.parametrize(("method", "reference"), PAIRS, ids=NAMES)
def test_a_waiting_method_is_its_reference(method, reference, net, stages):
    """Bit-equal: the same kernels in the same order."""
    batches, modules = data(net, 13, last=3), net(stages)
    losses = reference(modules, batches, loss=cross_entropy, **SGD)
    assert not different(train(method, net(stages), batches).state, outcome(losses, modules))


def beside(
    reference: Reference,
    words: Callable[[list[nn.Module]], dict[str, Any]],
    method: Method,
    modules: list[nn.Module],
    batches: Batches,
    lr: float,
) -> tuple[list[Tensor], list[Tensor]]:
    """Hocket's outcome and the reference's, which is told of copies of the signal networks."""
    stages, losses = len(modules), []

    def watch(event, stage):
        if event.action.kind == "B" and stage.index == stages - 1:
            losses.append(event.report.loss)

    trainer = Trainer(modules, method=method, optimizer=partial(sgd, lr=lr), watchers=[watch])
    trainer.prepare(batches[0][0])
    helping = [stage.signal_network for stage in trainer.stages[:-1]]
    own, helpers = copied(modules), copied(helping)
    trainer.fit(batches, epochs=1, progress=False)
    options = {"loss": cross_entropy, **words(helpers), **SGD, "lr": lr}
    theirs = outcome(reference(own, batches, **options), own, helpers)
    return outcome(losses, modules, helping), theirs


@networks
@pytest.mark.parametrize("delay", [0, 1])
def test_dgl_is_its_reference(delay, net, stages):
    """Bit-equal: the same kernels in the same order."""
    method, batches = DGL(forward_delay=delay), data(net, 12, last=3)
    words = lambda heads: {"heads": heads}  # noqa: E731
    assert not different(*beside(dgl.train, words, method, net(stages), batches, lr=0.1))


@pytest.mark.parametrize("edges", [1, 2, 3])
@pytest.mark.parametrize(("net", "stages"), [(mlp, 4), (conv, 4)])
def test_reach_is_its_reference(edges, net, stages):
    """Close in float64: the reference differentiates each loss by itself."""
    method, batches = DGL(reach=edges), data(net, 12, last=3)
    words = lambda heads: {"heads": heads, "reach": edges}  # noqa: E731
    ends = beside(reach.train, words, method, net(stages), batches, lr=0.02)
    assert not far(*ends, tolerance=1e-9)


@pytest.mark.parametrize(("net", "stages"), [(mlp, 3), (conv, 2), (wide, 3)])
@pytest.mark.parametrize("weight", [0.5, 0.99])
def test_similarity_matching_is_its_reference(weight, net, stages):
    """Close in float64: the reference takes pair after pair.

    Few batches, as BatchNorm over so few samples makes much of a rounding error.
    """

    def words(helping):
        heads = [network["head"] for network in helping]
        layers = [network["matching"].layer for network in helping]
        return {"beta": weight, "classes": CLASSES, "heads": heads, "layers": layers}

    method, batches = DGL(similarity=weight), data(net, 5, last=3)
    ends = beside(predsim.train, words, method, net(stages), batches, lr=0.02)
    assert not far(*ends, tolerance=1e-9)


@pytest.mark.parametrize(("net", "stages"), [(conv, 2), (conv, 4), (wide, 3)])
@pytest.mark.parametrize("weights", [[3.0, 0.5, 1.0, 2.0], [2.0, 0.5]], ids=["four", "two"])
def test_infopro_is_its_reference(weights, net, stages):
    """Close in float64; two weights are those of every stage."""

    def words(helping):
        four = weights if len(weights) == 4 else weights * 2
        heads, decoders = ([each[name] for each in helping] for name in ("head", "decoder"))
        return {"weights": four, "heads": heads, "decoders": decoders}

    method, batches = DGL(infopro=weights), data(net, 6, last=3)
    ends = beside(infopro.train, words, method, net(stages), batches, lr=0.02)
    assert not far(*ends, tolerance=1e-9)


@networks
@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("labels", [False, True], ids=["dni", "cdni"])
def test_dni_is_its_reference(labels, delay, net, stages):
    """Bit-equal: the same kernels in the same order."""
    method, batches = DNI(labels=labels, backward_delay=delay), data(net, 6, last=3)
    reference = partial(dni.train, conditional=labels, target_delay=delay)
    words = lambda helping: {"synthesizers": helping}  # noqa: E731
    assert not different(*beside(reference, words, method, net(stages), batches, lr=0.003))


def test_a_wrong_reference_is_noticed():
    """The comparison itself can fail: one update more or less shows."""
    batches, modules = data(mlp, 12), mlp(3)
    losses = fdg.train(modules, batches, loss=cross_entropy, order="forward-first", **SGD)
    assert far(train(FDG(), mlp(3), batches).state, outcome(losses, modules), 1e-4)

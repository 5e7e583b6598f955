"""The laws that hold for every method, each in one test.

``different`` demands equal bits, ``far`` the same mathematics in float64.
"""

from dataclasses import replace
from itertools import product
from math import ceil

import pytest
import torch

from contract.small import (
    LINEARIZE,
    METHODS,
    ORDERS,
    STAGES,
    WAITING,
    Gradients,
    back_propagate,
    conv,
    coupled,
    data,
    different,
    far,
    mlp,
    table,
    train,
    true_gradients,
    weights_of,
)
from hocket.methods import (
    ADL,
    BP,
    DDG,
    DGL,
    DSP,
    FDG,
    FR,
    PETRA,
    GPipe,
    OneFOneB,
    PipeDream,
    PipeDream2BW,
    build_method,
    method_options,
)
from hocket.methods.method import Method

NETWORKS = [(mlp, 2), (mlp, 4), (conv, 3)]
networks = pytest.mark.parametrize(("net", "stages"), NETWORKS)
several_stages = pytest.mark.parametrize("stages", STAGES[1:])
FAST = {"forward_delay": 0, "backward_delay": 0}


def variants() -> dict[str, Method]:
    """Every waiting method at every linearization and order it can be asked for, once each."""
    found: dict[Method, str] = {}
    for name in WAITING:
        has = method_options(name)
        own = METHODS[name]()
        for how in LINEARIZE if "linearize" in has else [own.linearize]:
            for order in ORDERS if "order" in has else [own.order]:
                asked = {"linearize": how, "order": order}
                method = build_method(name, **{o: v for o, v in asked.items() if o in has})
                found.setdefault(replace(method, name="", paper=""), f"{name}-{how}-{order}")
    return {label: method for method, label in found.items()}


VARIANTS = variants()
SHRUNK = {
    f"{name}-shrink-{shrink}": build_method(name, shrink=shrink)
    for name in WAITING
    for shrink in (0.5, 0.3)
    if "shrink" in method_options(name)
}


# (a) Where there is no delay, a method is back-propagation.


@pytest.mark.parametrize(("name", "net"), [*product(METHODS, [mlp, conv]), ("petra", coupled)])
def test_one_stage_is_back_propagation(name, net):
    batches, method = data(net, 7, last=3), build_method(name)
    plain = back_propagate(
        net(1), batches, epochs=2, accumulate=method.accumulate, reduce=method.reduce
    )
    assert not different(train(method, net(1), batches, epochs=2).state, plain)


@networks
@pytest.mark.parametrize("name", [n for n in WAITING if not METHODS[n]().remedies])
def test_without_delays_every_waiting_method_is_back_propagation(name, stages, net):
    undelayed = {**FAST, "first_stage_rate": 1.0}
    method = build_method(
        name, **{o: v for o, v in undelayed.items() if o in method_options(name)}
    )
    batches = data(net, 7, last=3)
    plain = back_propagate(
        net(stages), batches, accumulate=method.accumulate, reduce=method.reduce
    )
    assert not different(train(method, net(stages), batches).state, plain)


# (b) While no weight moves, a late gradient is the true one.


@pytest.mark.parametrize(
    ("method", "net", "stages"),
    [
        pytest.param(method, net, stages, id=f"{label}-{net.__name__}-{stages}")
        for methods, nets in [
            (VARIANTS, NETWORKS),
            (SHRUNK, [(mlp, 4), (conv, 4)]),
            ({"petra": PETRA()}, [(coupled, stages) for stages in STAGES[1:]]),
        ]
        for label, method in methods.items()
        for net, stages in nets
    ],
)
def test_at_rate_zero_every_gradient_is_that_of_back_propagation(method, net, stages):
    """Bit-equal; close where gradients are shrunk by other than powers of two, or inverted."""
    shrink = method.signal.shrink
    compare = far if shrink == 0.3 or method.linearize == "invert" else different
    batches, gradients, modules = data(net, 9, last=3), Gradients(), net(stages)
    train(method, modules, batches, watch=gradients, lr=0.0)
    weights = [weights_of(module) for module in modules]
    for b, (x, y) in enumerate(batches):
        for k, true in enumerate(true_gradients(modules, x, y, weights)):
            wanted = [g * shrink ** (stages - 1 - k) for g in true]
            assert not compare(gradients.seen.pop((k, b)), wanted)
    assert not gradients.seen


# (c) Stash is the gradient at the weights of each stage's own forward.

STASHING = {
    **{name: method for name, method in VARIANTS.items() if method.linearize == "stash"},
    "delays-2-0": table(forward_delay=2, backward_delay=0),
    "delays-0-2": table(forward_delay=0, backward_delay=2, order="backward-first"),
    "delays-2-1-mean-of-2": table(forward_delay=2, accumulate=2),
    "shrunk": FDG(shrink=0.5),
    "vertical": PipeDream(hold="vertical"),
    "double": ADL(hold="double", accumulate=5),
}


@networks
@pytest.mark.parametrize("method", STASHING.values(), ids=STASHING.keys())
def test_stash_is_the_gradient_at_the_weights_of_each_forward(method, stages, net):
    batches, modules, gradients = data(net, 10, last=3), net(stages), Gradients()
    weights = {(k, 0): weights_of(module) for k, module in enumerate(modules)}
    seen = {}

    def watch(event, stage):
        gradients(event, stage)
        if event.action.kind == "F":
            seen[stage.index, event.action.batch] = event.report.version
        if event.action.kind == "U":
            weights[stage.index, event.report.version + 1] = weights_of(stage.module)

    train(method, modules, batches, watch=watch)
    assert max(version for _, version in weights) > 0
    for b, (x, y) in enumerate(batches):
        then = [weights[k, seen[k, b]] for k in range(stages)]
        for k, true in enumerate(true_gradients(modules, x, y, then)):
            wanted = [g * method.signal.shrink ** (stages - 1 - k) for g in true]
            assert not different(gradients.seen[k, b], wanted)


# (d) Staleness is counted, and is what the table says.

COUNTED = {
    **{name: METHODS[name]() for name in METHODS},
    **{
        f"{name}-{order}": build_method(name, order=order)
        for name in METHODS
        for order in ORDERS
        if method_options(name).get("order", order) != order
    },
    **{
        f"adl-{m}-{order}": ADL(accumulate=m, order=order)
        for m in [1, 2, 3, 4, 5]
        for order in ORDERS
    },
    "vertical": PipeDream(hold="vertical"),
    "vertical-adl": ADL(hold="vertical", accumulate=3),
    "double-adl": ADL(hold="double", accumulate=6),
    "ddg-backward-first-late": DDG(backward_delay=3, order="backward-first"),
}


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("method", COUNTED.values(), ids=COUNTED.keys())
def test_measured_staleness_is_that_of_the_table(method, stages):
    trained = train(method, mlp(stages), data(mlp, 13), lr=1e-3)
    for k in range(stages):
        measured = [e.report.staleness for e in trained.of("B", k)]
        assert measured == [method.staleness(k, stages, b) for b in range(13)]
        versions = {e.action.batch: e.report.version for e in trained.of("F", k)}
        missed = [e.report.version - versions[e.action.batch] for e in trained.of("B", k)]
        assert missed == measured


# The formulas of the papers, with modules counted from 1, of methods that are measured above.
PAPERS = {
    "ddg": (DDG(), lambda k, stages: stages - k),
    "fr": (FR(), lambda k, stages: stages - k),
    "fdg": (FDG(), lambda k, stages: max(2 * (stages - k) - 1, 0)),
    "fdg-forward-first": (FDG(order="forward-first"), lambda k, stages: 2 * (stages - k)),
    "dsp": (DSP(order="forward-first"), lambda k, stages: 2 * (stages - k)),
    "dgl": (DGL(), lambda k, stages: 0),
    "bp": (BP(), lambda k, stages: 0),
    "gpipe": (GPipe(), lambda k, stages: 0),
    "1f1b": (OneFOneB(), lambda k, stages: 0),
    "pipedream": (PipeDream(), lambda k, stages: stages - k),
    "vertical": (PipeDream(hold="vertical"), lambda k, stages: stages - 1),
    "2bw": (PipeDream2BW(), lambda k, stages: float(stages > 1)),
}
for m in [1, 2, 3, 4, 5]:
    PAPERS[f"adl-a-{m}"] = (
        ADL(accumulate=m, order="forward-first"),
        lambda k, stages, m=m: 2 * (stages - k) / m,
    )
    PAPERS[f"adl-b-{m}"] = (
        ADL(accumulate=m, order="backward-first"),
        lambda k, stages, m=m: max(2 * (stages - k) - 1, 0) / m,
    )


@pytest.mark.parametrize(("method", "formula"), PAPERS.values(), ids=PAPERS.keys())
def test_mean_staleness_is_that_of_the_papers(method, formula):
    assert method in COUNTED.values()
    steady = range(8, 8 + method.accumulate)  # the longest delay here is 6 ticks
    for stages, k in ((count, k) for count in STAGES for k in range(count)):
        counted = [method.staleness(k, stages, batch) for batch in steady]
        assert sum(counted) / len(counted) == formula(k + 1, stages)
        assert method.staleness(k, stages) == formula(k + 1, stages)
        assert set(counted) <= {int(formula(k + 1, stages)), ceil(formula(k + 1, stages))}


# (e) A stage that learns from its own loss does not care when the next one works.


@networks
@pytest.mark.parametrize("choices", [{}, {"accumulate": 3}, {"similarity": 0.9}], ids=str)
def test_pipelined_dgl_is_sequential_dgl(choices, stages, net):
    ends = [
        train(
            DGL(forward_delay=delay, **choices),
            net(stages, dropout=0.3),
            data(net, 8, last=3),
            epochs=2,
        ).state
        for delay in (0, 1)
    ]
    assert not different(*ends)


# (h) Accumulated gradients are those of a larger batch.


@several_stages
@pytest.mark.parametrize("name", [n for n in WAITING if "accumulate" in method_options(n)])
def test_one_group_of_every_accumulating_method_is_the_larger_batch(name, stages):
    small = data(mlp, 6)
    large = [tuple(torch.cat(part) for part in zip(*small, strict=True))]
    method = (
        build_method(name, accumulate=6, reduce="mean")
        if name != "adl-official"
        else ADL(accumulate=6, linearize="live")
    )
    means = train(method, mlp(stages), small).state[1:]
    assert not far(means, train(BP(), mlp(stages), large).state[1:])

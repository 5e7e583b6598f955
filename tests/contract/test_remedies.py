"""The laws of remedies for late gradients, over the whole registry where that is possible."""

from functools import partial

import pytest
import torch

from contract.small import SGD, data, different, mlp, train
from hocket import cross_entropy
from hocket.errors import OptionError
from hocket.methods import BP, DGL, FDG, METHODS, PACI, PipeDream, parse_method
from hocket.remedies import REMEDIES, T1, Post, StalenessRate, remedy_options
from reference import pipedream

NEUTRAL = {"t1": T1(anneal=0), "staleness-rate": StalenessRate(power=0.0)}
every_remedy = pytest.mark.parametrize("name", REMEDIES)


@every_remedy
def test_without_delay_a_remedy_leaves_every_bit(name):
    """At the only stage, and at the last of several."""
    remedied = FDG().with_remedies(REMEDIES[name]())
    ends = [train(method, mlp(1), data(mlp, 7)).state for method in (FDG(), remedied)]
    assert not different(*ends)


@every_remedy
@pytest.mark.parametrize("base", ["fdg", "adl", "ddg-official", "dsp"])
def test_a_remedy_at_its_neutral_value_leaves_every_bit(name, base):
    method = METHODS[base]()
    ends = [
        train(each, mlp(3), data(mlp, 9)).state
        for each in (method, method.with_remedies(NEUTRAL[name]))
    ]
    assert not different(*ends)


@every_remedy
def test_a_remedy_has_an_effect_where_gradients_are_late(name):
    ends = [
        train(method, mlp(3), data(mlp, 9)).state[1:]
        for method in (FDG(), FDG().with_remedies(REMEDIES[name]()))
    ]
    last = len(list(mlp(1)[0].state_dict()))
    assert different(ends[0][:-last], ends[1][:-last])


def annealed(k, t, staleness, *, stages, anneal, per_update=1):
    """T1 of PipeMare: tau^-p with p = 1 - min(t / A, 1)."""
    tau = max((stages - 1 - k) / per_update, 1.0)
    return tau ** -(1 - min(t / anneal, 1)) if t < anneal else 1.0


def divided(k, t, staleness):
    """Staleness-aware SGD: the learning rate over the staleness."""
    return max(sum(staleness) / len(staleness), 1.0) ** -1.0


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize(
    ("method", "remedy", "rate", "how"),
    [
        (PipeDream(), T1(anneal=7), partial(annealed, anneal=7), {}),
        (
            PACI(accumulate=2),
            T1(anneal=4),
            partial(annealed, anneal=4, per_update=2),
            {"accumulate": 2, "linearize": "live"},
        ),
        (PipeDream(), StalenessRate(), divided, {}),
        (PACI(accumulate=2), StalenessRate(), divided, {"accumulate": 2, "linearize": "live"}),
    ],
    ids=str,
)
def test_a_factor_on_the_rate_is_that_of_its_reference(method, remedy, rate, how, stages):
    """Bit-equal: the same kernels in the same order."""
    batches, modules = data(mlp, 13, last=3), mlp(stages)
    rate = partial(rate, stages=stages) if rate is not divided else rate
    losses = pipedream.train(modules, batches, loss=cross_entropy, rate=rate, **how, **SGD)
    trained = train(method.with_remedies(remedy), mlp(stages), batches).state
    states = [value for module in modules for value in module.state_dict().values()]
    assert not different(trained, [torch.tensor(losses, dtype=torch.double), *states])


def test_constant_staleness_divides_the_users_rate():
    """Of a stage that is late by two updates, once it has got there."""
    aid = StalenessRate().posted(Post(stage=0, stages=3, staleness=2.0))
    factors = []
    for update, staleness in enumerate([0, 1, 2, 2, 2]):
        aid.gathered(staleness)
        factors.append(aid.rate(update))
    assert factors == [1.0, 1.0, 0.5, 0.5, 0.5]


def test_remedies_are_written_after_a_method_and_multiply():
    method = parse_method("fdg:shrink=0.5+t1(anneal=3)+staleness-rate")
    assert method == FDG(shrink=0.5).with_remedies(T1(anneal=3), StalenessRate())
    rates = []

    def watch(event, stage):
        if event.action.kind == "U" and stage.index == 0:
            rates.append(event.report.lr)

    train(method, mlp(2), data(mlp, 7), watch=watch, lr=1.0)
    assert rates == [1.0] * 7  # staleness 1 at most: nothing to divide by
    rates.clear()
    train(method, mlp(3), data(mlp, 7), watch=watch, lr=1.0)
    tau = 3.0
    wanted = [tau ** (min(t / 3, 1) - 1) / max(min(t, 3), 1) for t in range(7)]
    assert rates == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("fdg+t2000", "unknown remedy 't2000'; there are: staleness-rate, t1"),
        ("fdg+t1(anneal=-1)", "anneal is -1; use a number of at least 0"),
        ("fdg+t1(anneal=soon)", "anneal is 'soon'; wanted a whole number"),
        ("fdg+t1(speed=3)", "unknown option 'speed'; there are: anneal"),
        ("fdg+staleness-rate(power=-1)", "power is -1; use a number of at least 0"),
        ("fdg+t1(anneal=3", r"cannot read the remedy 't1\(anneal=3'; write it after a method"),
        ("bp+t1", "there is no late gradient that T1 could correct"),
        ("dgl+t1", "there is no late gradient that T1 could correct"),
    ],
)
def test_a_remedy_that_cannot_be_is_refused(text, told):
    with pytest.raises(OptionError, match=told):
        parse_method(text)


def test_a_remedy_that_is_none_is_refused():
    with pytest.raises(OptionError, match="remedies has 't1', which is no remedy; give one"):
        FDG().with_remedies("t1")
    with pytest.raises(OptionError, match="remedy 't1' cannot be built"):
        T1(anneal=1.5)
    with pytest.raises(OptionError, match="remedy 'staleness-rate' cannot be built"):
        StalenessRate(power="1")


@pytest.mark.parametrize("build", [BP, DGL])
def test_methods_without_late_gradients_have_no_use_for_remedies(build):
    with pytest.raises(OptionError, match="use a method whose gradients have a delay"):
        build().with_remedies(T1())


def test_options_of_an_unknown_remedy_are_refused():
    with pytest.raises(OptionError, match="unknown remedy 't9'"):
        remedy_options("t9")

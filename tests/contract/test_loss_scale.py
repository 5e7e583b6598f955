"""float16 with a loss scale: what a scale must not change, and what an overflow does."""

import pytest

from contract.small import LINEARIZED, conv, data, different, mlp, sgd, train, values_of
from contract.spoiled import BACKWARD, brittle, marked
from hocket import Trainer, cross_entropy
from hocket.errors import NonFiniteError, OptionError
from hocket.methods import as_method
from hocket.stage import setup

PREDICTING = ("dni", "cdni")
WAYS = [
    *(name for name in LINEARIZED if name not in PREDICTING),
    *("adl:accumulate=3", "fdg:shrink=0.5", "dgl:similarity=0.9", "dgl:reach=1"),
    *("fdg+staleness-rate+compensate-adaptive", "fdg+spike-compensation+predict"),
]


def scaled(monkeypatch, scale):
    """Let every stage begin with this scale in float16."""
    monkeypatch.setattr(setup, "FIRST_SCALE", scale)


def low(net):
    return lambda stages: [module.float() for module in net(stages)]


def low_data(net, count):
    return [(x.float(), y) for x, y in data(net, count)]


def scales(trainer):
    return [stage.core.loss_scale.factor for stage in trainer.stages]


def allowed(way):
    """True unless autocast would compute with copies of the weights."""
    method = as_method(way)
    late = any(method.graph_delay(k, 3) for k in range(3))
    return not (late and method.linearize == "live")


@pytest.mark.parametrize("net", [mlp, conv])
@pytest.mark.parametrize("way", [way for way in WAYS if allowed(way)])
def test_a_scale_changes_no_bit_of_what_is_learned(way, net):
    """In float64, which autocast leaves alone: there nothing overflows or vanishes."""
    plain, scaled = (
        train(way, net(3), data(net, 5), epochs=2, lr=0.05, precision=precision).trainer
        for precision in ("fp32", "fp16")
    )
    assert scales(plain) == [1.0] * 3
    assert scales(scaled) == [65536.0] * 3
    assert not different(values_of(plain), values_of(scaled))


def test_small_gradients_survive_every_edge(monkeypatch):
    """With a loss of a millionth, the first of three stages learns nothing without a scale."""

    def norms(scale, precision):
        scaled(monkeypatch, scale)
        loss = lambda output, targets: cross_entropy(output, targets) * 1e-6  # noqa: E731
        options = {"loss": loss, "precision": precision, "lr": 1e-9}
        done = train("fdg:linearize=stash", low(mlp)(3), low_data(mlp, 6), **options)
        return [e.report.gradient_norm for e in done.events if e.action.kind == "B"]

    exact, found = norms(1.0, "fp32"), norms(65536.0, "fp16")
    assert found == pytest.approx(exact, rel=0.02)
    assert min(norms(1.0, "fp16")) == 0 < min(exact)


@pytest.mark.parametrize("way", ["fdg", "fr", "dgl", "adl:accumulate=3"])
def test_a_batch_that_overflows_is_skipped_and_changes_no_weight(way, monkeypatch):
    scaled(monkeypatch, 2.0**30)
    before, faults, updates = {}, {}, {}

    def watch(event, stage):
        own, kind = stage.index, event.action.kind
        now = [p.detach().clone() for p in stage.updater.parameters]
        if kind == "B" and event.report.fault:
            faults.setdefault(own, []).append(event.report.fault)
        if kind == "U":
            updates.setdefault(own, []).append(event.report.skipped)
            assert event.report.skipped is not bool(different(before.get(own, now), now)), event
        before[own] = now

    options = {"lr": 0.05, "precision": "fp16", "watch": watch}
    trained = train(way, low(mlp)(3), low_data(mlp, 40), **options)
    trainer, history = trained.trainer, trained.history
    for k, own in faults.items():
        assert len(own) > 3
        for n, fault in enumerate(own, 1):
            end = f"; the loss scale of the stage is {2.0 ** (30 - n):g} from now on"
            assert fault.endswith(end)
            assert "gradient" in fault
        assert trainer.stages[k].core.loss_scale.factor == 2.0 ** (30 - len(own))
    assert 2 in faults  # the last stage overflows itself, and others skip with it
    assert all(
        updates[k][0] and not updates[k][-1] for k in (range(3) if way != "dgl" else [2])
    )
    if trainer._session.setup.method.signal.needs_gradient:
        assert history[0].skipped[0] >= history[0].skipped[2] == len(faults[2])
    assert all(p.isfinite().all() for p in values_of(trainer))


def test_the_training_is_that_without_the_batches_that_overflow(monkeypatch):
    """Bit-equal where nothing else is in flight."""
    batches = low_data(mlp, 14)
    scaled(monkeypatch, 2.0**30)
    whole = train("bp", low(mlp)(1), batches, lr=0.05, precision="fp16")
    (scale,) = scales(whole.trainer)
    scaled(monkeypatch, scale)
    count = whole.history[0].skipped[0]  # the first ones
    rest = train("bp", low(mlp)(1), batches[count:], lr=0.05, precision="fp16")
    assert 3 < count < len(batches)
    assert not different(values_of(whole.trainer), values_of(rest.trainer))


def test_an_epoch_may_be_too_short_to_find_the_scale(monkeypatch):
    scaled(monkeypatch, 2.0**30)
    options = {"epochs": 20, "lr": 0.05, "precision": "fp16"}
    history = train("bp", low(mlp)(3), low_data(mlp, 2), **options).history
    assert [epoch.skipped for epoch in history[:3]] == [(2, 2, 2)] * 3
    assert history[-1].skipped == (0, 0, 0)


@pytest.mark.parametrize(("scale", "skipped"), [(1.0, 0), (4.0, 2)])
def test_what_is_not_finite_at_a_scale_of_one_is_a_fault(scale, skipped, monkeypatch):
    scaled(monkeypatch, scale)
    batches = marked(5, dict.fromkeys(range(1, 5), 0 + BACKWARD))
    trainer = Trainer(brittle(1), method="bp", optimizer=sgd, precision="fp16")
    trainer.step(*batches[0])
    for batch in batches[1 : 1 + skipped]:
        assert trainer.step(*batch) is None
    with pytest.raises(NonFiniteError, match=r"gradient of '0.0.linear.weight' became nan"):
        trainer.step(*batches[4])


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("way", [way for way in WAYS if not allowed(way)])
def test_late_live_gradients_are_refused(way, precision):
    with pytest.raises(OptionError, match=f"precision '{precision}' computes with copies"):
        train(way, mlp(3), data(mlp, 1), precision=precision)

"""The laws of remedies for late gradients, over the whole registry where that is possible."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from contract.small import (
    LINEARIZE,
    SGD,
    Gradients,
    data,
    different,
    far,
    mlp,
    outcome,
    train,
    weights_of,
)
from hocket import Trainer, cross_entropy
from hocket.errors import OptionError
from hocket.methods import (
    ADL,
    DDG,
    FDG,
    PACI,
    PipeDream,
    build_method,
    method_options,
    parse_method,
)
from hocket.methods.method import Method
from hocket.remedies import (
    REMEDIES,
    T1,
    T2,
    T3,
    Compensate,
    CompensateAdaptively,
    DropLate,
    GapAware,
    Predict,
    Remedy,
    SpikeCompensation,
    StageInfo,
    StalenessRate,
    Weights,
    remedy_options,
)
from hocket.tree import tensors
from reference import compensate, gap_aware, pipedream, predict
from unit.stage.test_held_weights import HOLDING
from unit.stage.test_untrained import matrices

NEUTRAL = {
    "t1": T1(anneal=0),
    "t2": T2(decay=1.0),
    "compensate": Compensate(strength=0.0),
    "compensate-adaptive": CompensateAdaptively(strength=0.0),
    "staleness-rate": StalenessRate(power=0.0),
    "t3": T3(updates=0),
    "drop-late": DropLate(limit=9),
}
OTHER_VALUES = {
    "anneal": 3,
    "decay": 0.5,
    "direction": "decaying",
    "limit": 2,
    "power": 0.5,
    "strength": 0.5,
    "updates": 3,
}
OPTIONS = [(name, option) for name in REMEDIES for option in remedy_options(name)]
VARIANTS = [
    *(build() for build in REMEDIES.values()),
    *(REMEDIES[name](**{option: OTHER_VALUES[option]}) for name, option in OPTIONS),
    Predict(direction="last"),
]
every_remedy = pytest.mark.parametrize("name", REMEDIES)


def label(value):
    """Part of a test's id, short and the same in every process."""
    if isinstance(value, Method):
        return f"{value.name} {value.linearize} {value.accumulate}"
    return str(value) if isinstance(value, Remedy) else type(value).__name__


def base_of(remedy, method="fdg"):
    """A method for a remedy: linearized so that it may move the weights of backwards.

    To drop some gradients and not all, their staleness has to differ.
    """
    if remedy.name == "drop-late":
        return ADL(accumulate=2)
    options = {"linearize": "live"} if remedy.moves == "backward" else {}
    asked = {o: v for o, v in options.items() if o in method_options(method)}
    return build_method(method, **asked)


def states(*methods, stages=3):
    """The states after a training with each method."""
    return [train(each, mlp(stages), data(mlp, 9)).state for each in methods]


@every_remedy
def test_without_delay_a_remedy_leaves_every_bit(name):
    method = base_of(REMEDIES[name])
    assert not different(*states(method, method.with_remedies(REMEDIES[name]()), stages=1))


@pytest.mark.parametrize("name", NEUTRAL)
@pytest.mark.parametrize("base", ["fdg", "adl", "ddg-official", "dsp"])
def test_a_remedy_at_its_neutral_value_leaves_every_bit(name, base):
    method = base_of(REMEDIES[name], base)
    assert not different(*states(method, method.with_remedies(NEUTRAL[name])))


@every_remedy
def test_a_remedy_has_an_effect_where_gradients_are_late(name):
    method = base_of(REMEDIES[name])
    plain, remedied = states(method, method.with_remedies(REMEDIES[name]()))
    last = len(list(mlp(1)[0].state_dict()))
    assert different(plain[1:-last], remedied[1:-last])


@every_remedy
@pytest.mark.parametrize("base", ["fdg", "adl", "ddg-official", "dsp"])
def test_at_rate_zero_a_remedy_leaves_every_gradient(name, base):
    """No weight moves, so that nothing is to be corrected."""
    method, seen = base_of(REMEDIES[name], base), []
    for each in (method, method.with_remedies(REMEDIES[name]())):
        gradients = Gradients()
        train(each, mlp(3), data(mlp, 9), watch=gradients, lr=0.0)
        seen.append(gradients.seen)
    assert seen[0].keys() == seen[1].keys()
    assert not any(different(seen[0][place], seen[1][place]) for place in seen[0])


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_every_option_of_a_remedy_has_an_effect(name, option):
    remedies = REMEDIES[name](), REMEDIES[name](**{option: OTHER_VALUES[option]})
    method = base_of(REMEDIES[name])
    assert different(*states(*(method.with_remedies(each) for each in remedies)))


REMEDIED = [
    replace(base_of(kind), linearize=how).with_remedies(kind())
    for kind in REMEDIES.values()
    for how in LINEARIZE
    if (how, kind.moves) != ("stash", "backward")  # which is refused
]


@pytest.mark.parametrize("method", [*REMEDIED, *HOLDING.values()], ids=label)
def test_only_updates_move_the_weights_that_are_found_between_actions(method):
    """Parameters stay the same objects in the same memory."""
    modules = mlp(3)
    places = [[(id(p), p.data_ptr()) for p in module.parameters()] for module in modules]
    before = [weights_of(module) for module in modules]

    def watch(event, stage):
        k = stage.index
        if event.action.kind != "U":
            now = weights_of(modules[k])
            assert not different(now.values(), before[k].values())
        before[k] = weights_of(modules[k])

    train(method, modules, data(mlp, 13), watch=watch)
    assert places == [
        [(id(p), p.data_ptr()) for p in module.parameters()] for module in modules
    ]


@pytest.mark.parametrize("remedy", VARIANTS, ids=label)
def test_a_remedy_keeps_as_many_copies_as_it_says(remedy):
    """In what it writes into checkpoints, which is all that outlives an action."""
    trainer = train(base_of(remedy).with_remedies(remedy), mlp(3), data(mlp, 9)).trainer
    for stage in trainer.stages[:-1]:
        kept = sum(t.numel() for t in tensors(stage.updater.remedies.state_dict()))
        assert kept == remedy.copies * sum(p.numel() for p in stage.updater.parameters)


LIVE = {"linearize": "live"}
PACI_2 = (PACI(accumulate=2), {"accumulate": 2, **LIVE})
WAYS = [
    (PipeDream(), {}),
    (DDG(linearize="live"), LIVE),
    (DDG(linearize="recompute"), {"linearize": "recompute"}),
    PACI_2,
]
"""Methods and the reference's words; the first stashes weights, and the others use new ones."""


def with_reference(method, stages, **how):
    """The state after a training with a method, and that of the reference."""
    batches, modules = data(mlp, 13, last=3), mlp(stages)
    losses = pipedream.train(modules, batches, loss=cross_entropy, **how, **SGD)
    return train(method, mlp(stages), batches).state, outcome(losses, modules)


def annealed(k, t, staleness, *, stages, anneal, per_update=1):
    """T1 of PipeMare: tau^-p with p = 1 - min(t / A, 1)."""
    tau = max((stages - 1 - k) / per_update, 1.0)
    return tau ** -(1 - min(t / anneal, 1)) if t < anneal else 1.0


def divided(k, t, staleness):
    """Staleness-aware SGD: the learning rate over the staleness."""
    return max(sum(staleness) / len(staleness), 1.0) ** -1.0


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize(
    ("method", "how", "remedy", "rate"),
    [
        (PipeDream(), {}, T1(anneal=7), partial(annealed, anneal=7)),
        (*PACI_2, T1(anneal=4), partial(annealed, anneal=4, per_update=2)),
        (PipeDream(), {}, StalenessRate(), divided),
        (*PACI_2, StalenessRate(), divided),
    ],
    ids=label,
)
def test_a_factor_on_the_rate_is_that_of_its_reference(method, how, remedy, rate, stages):
    """Bit-equal: the same kernels in the same order."""
    rate = partial(rate, stages=stages) if rate is not divided else rate
    assert not different(
        *with_reference(method.with_remedies(remedy), stages, rate=rate, **how)
    )


def pipemare(stages, accumulate):
    """The reference's words for all three techniques: T1 begins where T3 ends."""
    rate = partial(annealed, stages=stages, anneal=4, per_update=accumulate)
    return {
        "rate": lambda k, t, staleness: rate(k, t - 3, staleness) if t >= 3 else 1.0,
        "behind": predict.MeanChange(0.135, stages, accumulate),
        "flushed": 3,
    }


# Remedies, and a function that returns the reference's words for a method on so many stages.
REFERENCES = {
    "steady": ([Predict(direction="steady")], lambda *_: {"ahead": predict.spectrain}),
    "decaying": ([Predict(direction="decaying")], lambda *_: {"ahead": predict.msnag}),
    "last": ([Predict(direction="last")], lambda *_: {"ahead": predict.LastChange()}),
    "t2 0": ([T2(decay=0.0)], lambda *of: {"behind": predict.MeanChange(0.0, *of)}),
    "t2 0.135": ([T2(decay=0.135)], lambda *of: {"behind": predict.MeanChange(0.135, *of)}),
    "t2 0.5": ([T2(decay=0.5)], lambda *of: {"behind": predict.MeanChange(0.5, *of)}),
    "compensate": (
        [Compensate(strength=0.7)],
        lambda *_: {"correct": compensate.constant(0.7)},
    ),
    "compensate-adaptive": (
        [CompensateAdaptively(strength=0.9, decay=0.8)],
        lambda *_: {"correct": compensate.Adaptive(0.9, 0.8)},
    ),
    "gap-aware": ([GapAware(decay=0.999)], lambda *_: {"correct": gap_aware.GapAware(0.999)}),
    "gap-aware 0.5": ([GapAware(decay=0.5)], lambda *_: {"correct": gap_aware.GapAware(0.5)}),
    "spike": ([SpikeCompensation()], lambda *_: {"spikes": True}),
    # As the paper recommends.
    "spike and last": (
        [SpikeCompensation(), Predict(direction="last")],
        lambda *_: {"spikes": True, "ahead": predict.LastChange()},
    ),
    "pipemare": ([T1(anneal=4), T2(), T3(updates=3)], pipemare),
}


def fits(method, remedies):
    """Tell whether a method takes the remedies: its backward may have fixed weights."""
    return method.linearize != "stash" or all(each.moves != "backward" for each in remedies)


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize(
    ("method", "how", "remedies", "words"),
    [
        pytest.param(*way, *reference, id=f"{label(way[0])}-{name}")
        for way in WAYS
        for name, reference in REFERENCES.items()
        if fits(way[0], reference[0])
    ],
)
def test_a_remedy_is_its_reference(method, how, remedies, words, stages):
    remedied = method.with_remedies(*remedies)
    words = words(stages, method.accumulate)
    assert not far(*with_reference(remedied, stages, **words, **how))


def test_the_typical_step_of_a_weight_that_joins_late_is_its_mean():
    early, late = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    optimizer = torch.optim.SGD([early, late], lr=0.1, momentum=0.9)
    acting = GapAware().attach(StageInfo(1, 4, 2.0), Weights([early, late], optimizer))
    for update in range(100):
        early.grad, late.grad = torch.ones(1), torch.ones(1) if update == 99 else None
        optimizer.step()
        acting.observe_update([0.1], [])
    acting.correct_gradient([early.detach().clone(), late.detach() - 0.1])
    assert late.grad.item() == pytest.approx(0.5)  # after a step as long as its only one


@pytest.mark.parametrize(
    ("grad", "kind"),
    [
        (torch.eye(3).to_sparse(), "sparse"),
        (torch.ones(3, 3, dtype=torch.complex64), "complex"),
    ],
)
@pytest.mark.parametrize("remedy", [Compensate(), CompensateAdaptively()], ids=label)
def test_gradients_that_cannot_be_multiplied_are_refused(remedy, grad, kind):
    weight = torch.nn.Parameter(torch.zeros(3, 3, dtype=grad.dtype))
    weight.grad = grad
    weights = Weights([weight], torch.optim.SGD([weight]))
    acting = remedy.attach(StageInfo(1, 4, 2.0), weights)
    with pytest.raises(OptionError, match=rf"stage 1: .*\(3, 3\) has a {kind} gradient"):
        acting.correct_gradient([weight.detach().clone()])


@pytest.mark.parametrize(("accumulate", "limit", "stages"), [(3, 0, 2), (3, 0, 3), (2, 1, 4)])
def test_gradients_are_dropped_as_in_the_reference(accumulate, limit, stages):
    """Bit-equal, where some are dropped and some are not."""
    method = PACI(accumulate=accumulate).with_remedies(DropLate(limit=limit))
    how = {"accumulate": accumulate, "limit": limit, **LIVE}
    ours, theirs = with_reference(method, stages, **how)
    assert not different(ours, theirs)


def test_a_stage_that_would_drop_each_gradient_is_refused():
    with pytest.raises(OptionError, match=r"stage 0 of 3: .* 3 or more .*limit=2"):
        train(FDG().with_remedies(DropLate(limit=2)), mlp(3), data(mlp, 3))
    train(FDG().with_remedies(DropLate(limit=3)), mlp(3), data(mlp, 3))


def test_an_update_whose_gradients_are_all_dropped_is_skipped():
    """The last group is short: each of its gradients is a whole update late."""
    trained = train(ADL(accumulate=4).with_remedies(DropLate(limit=0)), mlp(3), data(mlp, 18))
    skipped = [[event.report.skipped for event in trained.of("U", stage)] for stage in range(3)]
    assert skipped == [[False] * 4 + [True], [False] * 5, [False] * 5]


OTHER_RULES = [{"momentum": 0.0}, {"momentum": 1.0}, {"nesterov": True}, {"dampening": 0.5}]
WITHOUT_MOMENTUM = [partial(torch.optim.SGD, lr=0.1), torch.optim.AdamW]


@pytest.mark.parametrize(
    ("remedy", "options", "told"),
    [
        *((SpikeCompensation(), rule, "spike compensation is a rule") for rule in OTHER_RULES),
        *((GapAware(), {"optimizer": o}, "gap-aware measures") for o in WITHOUT_MOMENTUM),
        (StalenessRate(), {"optimizer": torch.optim.Rprop}, "staleness-rate .* Rprop"),
    ],
    ids=label,
)
def test_remedies_are_refused_under_other_rules_than_theirs(remedy, options, told):
    with pytest.raises(OptionError, match=f"stage 0: {told}"):
        train(FDG().with_remedies(remedy), mlp(2), data(mlp, 3), **options)


def test_while_a_schedule_has_no_momentum_a_spike_is_the_step_of_sgd():
    weight = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=0.5, momentum=0.9)
    at_stage = SpikeCompensation().attach(StageInfo(0, 3, 2.0), Weights([weight], optimizer))
    optimizer.param_groups[0]["momentum"] = 0.0
    optimizer.state[weight]["momentum_buffer"] = torch.ones(2)  # of earlier steps
    weight.grad = torch.zeros(2)
    at_stage.after_step([0.5])
    assert not weight.any()


def test_spike_compensation_knows_the_direction_of_sgd():
    """Maximizing a loss is minimizing its negative."""
    ends = []
    for maximize in (False, True):

        def loss(output, targets, sign=-1 if maximize else 1):
            return sign * cross_entropy(output, targets)

        method = FDG().with_remedies(SpikeCompensation())
        options = {"loss": loss, "maximize": maximize}
        ends.append(train(method, mlp(3), data(mlp, 9), **options).state[1:])
    assert not far(*ends)


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


def test_the_first_stale_update_has_the_staleness_of_its_batches_alone():
    method = DDG().with_remedies(T3(updates=2), StalenessRate())
    trained = train(method, mlp(2), data(mlp, 5), lr=1.0, replicas=2, replica_delay=2)
    rates = [event.report.lr for event in trained.of("U", 0)]
    assert rates[:5] == [None, None, 1.0, 1.0, 1 / 2]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("fdg+t2000", "unknown remedy 't2000'"),
        ("fdg+t1(anneal=-1)", "anneal is -1"),
        ("fdg+t1(anneal=soon)", "anneal is 'soon'"),
        ("fdg+t1(anneal=1.5)", "remedy 't1' cannot be built"),
        ("fdg+t3(updates=0.5)", "remedy 't3' cannot be built"),
        ("fdg+staleness-rate(power=x)", "remedy 'staleness-rate' cannot be built"),
        ("fdg+t1(speed=3)", "unknown option 'speed'; there are: anneal"),
        ("fdg+t3(updates=-1)", "updates is -1"),
        ("gpipe+t3", "no stale gradient that T3 could correct"),
        ("fdg+staleness-rate(power=-1)", "power is -1"),
        ("fdg+t1(anneal=3", r"cannot read the remedy 't1\(anneal=3'"),
        ("fdg+predict(direction=back)", "direction is 'back'; wanted 'steady' or"),
        ("fdg+t1+t1(anneal=3)", "T1 is given more than once"),
        ("fdg+predict+predict", "Predict, Predict each move"),
        ("fdg:linearize=live+predict+t2", "Predict, T2 each move"),
        ("fdg+t2", "T2 moves the weights of a backward, which linearize='stash'"),
        ("fdg:linearize=live+t2(decay=2)", "decay is 2"),
        ("pipedream:hold=vertical+predict", "Predict moves the newest weights"),
        ("fdg+compensate(strength=-1)", "strength is -1"),
        ("fdg+compensate-adaptive(decay=1)", r"decay is 1; use a number in \[0, 1\)"),
        ("dgl:reach=1+compensate", "Compensate would also correct the gradients of heads"),
        ("fdg+gap-aware(decay=1)", r"decay is 1; use a number in \[0, 0.9999999\]"),
        ("fdg+compensate+predict", "the present ones, and Predict moves them"),
        ("pipedream:hold=vertical+compensate", "hold='vertical' a forward has older ones"),
        ("fdg+drop-late(limit=-1)", "limit is -1"),
        ("bp+t1", "no stale gradient that T1 could correct"),
        ("dgl+t1", "no stale gradient that T1 could correct"),
    ],
)
def test_a_remedy_that_cannot_be_is_refused(text, told):
    with pytest.raises(OptionError, match=told):
        parse_method(text)


def test_what_is_no_remedy_is_refused():
    with pytest.raises(OptionError, match="remedies has 't1', which is no remedy"):
        FDG().with_remedies("t1")
    with pytest.raises(OptionError, match="unknown remedy 't9'"):
        remedy_options("t9")


def test_a_shift_for_a_pass_that_a_remedy_does_not_name_is_refused():
    class Shifting(T1):
        attach = Predict(direction="last").attach

    with pytest.raises(OptionError, match="Shifting has shift_for_forward, and moves is None"):
        train(FDG().with_remedies(Shifting()), mlp(2), data(mlp, 2))


@pytest.mark.parametrize(
    "optimizer",
    [
        partial(torch.optim.SGD, lr=0.1),
        torch.optim.RMSprop,
        partial(torch.optim.Muon, momentum=0.0),
    ],
    ids=["SGD", "RMSprop", "Muon"],
)
def test_moments_that_an_optimizer_does_not_have_are_refused(optimizer):
    def trained(method):
        modules = mlp(2)
        for bias in (p for module in modules for p in module.parameters() if p.dim() == 1):
            bias.requires_grad_(False)  # Muon takes matrices only
        return train(method, modules, data(mlp, 7), optimizer=optimizer).state

    with pytest.raises(OptionError, match=r"stage 0: direction='steady' predicts weights from"):
        trained(FDG().with_remedies(Predict()))
    assert different(trained(FDG()), trained(FDG().with_remedies(Predict(direction="last"))))


@pytest.mark.parametrize("remedy", [Compensate(), CompensateAdaptively()], ids=label)
def test_a_remedy_that_resizes_warns_under_optimizers_without_a_scale(remedy):
    method = FDG().with_remedies(remedy)
    with pytest.warns(UserWarning, match=f"{type(remedy).__name__} changes .* Adam divides"):
        train(method, mlp(2), data(mlp, 3), optimizer=torch.optim.Adam)


def test_a_memory_of_two_weights_is_moved_once():
    """By a whole change, not by one for each of the weights."""

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            base = torch.full((4, 4), 0.1)
            self.one, self.other = nn.Parameter(base), nn.Parameter(base)
            self.seen = []

        def forward(self, x):
            self.seen.append(self.one.detach().clone())
            return x @ self.one + x @ self.other

    first = Shared()
    method = DDG().with_remedies(Predict(direction="last"))
    trainer = Trainer(
        [first, nn.Linear(4, 3)], method=method, optimizer=partial(torch.optim.SGD, lr=0.01)
    )
    trainer.prepare(torch.randn(2, 4))
    at_ends = []
    first.seen.clear()
    for batch in [(torch.randn(8, 4), torch.randint(0, 3, (8,))) for _ in range(6)]:
        trainer.step(*batch)
        at_ends.append(first.one.detach().clone())
    # At batch n, the weights before it and the last change of them are known.
    for n in range(3, 6):
        change = at_ends[n - 1] - at_ends[n - 2]
        torch.testing.assert_close(first.seen[n], at_ends[n - 1] + change)


# Gap-aware gradients in an optimizer with groups of different learning rates.


@pytest.mark.parametrize("other", [0.001, 1.0])
def test_a_typical_step_of_a_weight_is_that_of_its_group(other):
    """Both weights have moved by one such step, so that their gradients are halved."""
    weights = [nn.Parameter(torch.zeros(3)) for _ in range(2)]
    lrs = [0.001, other]
    groups = [{"params": [w], "lr": lr} for w, lr in zip(weights, lrs, strict=True)]
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    acting = GapAware().attach(StageInfo(0, 2, 1.0), Weights(weights, optimizer))
    forward_weights = [weight.detach().clone() for weight in weights]
    for weight in weights:
        weight.grad = torch.ones(3)
    optimizer.step()
    acting.observe_update(lrs, [])
    acting.correct_gradient(forward_weights)
    for weight in weights:
        torch.testing.assert_close(weight.grad, torch.full((3,), 0.5))


def test_a_typical_step_has_the_largest_learning_rate_there_was():
    """Momentum and gradient stay 1 here, so that a gap of one such step is the rate."""
    weight = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([weight], momentum=0.9)
    acting = GapAware().attach(StageInfo(0, 2, 1.0), Weights([weight], optimizer))
    optimizer.state[weight]["momentum_buffer"] = torch.ones(3)
    for lr in (0.1, 0.5, 0.2):
        acting.observe_update([lr], [])
    weight.grad = torch.ones(3)
    acting.correct_gradient([weight.detach() + 0.5])
    torch.testing.assert_close(weight.grad, torch.full((3,), 0.5))


@every_remedy
def test_an_optimizer_may_leave_out_weights(name):
    method = base_of(REMEDIES[name]).with_remedies(REMEDIES[name]())
    modules, before = mlp(2), mlp(2)
    with pytest.warns(UserWarning, match="have no optimizer"):
        train(method, modules, data(mlp, 6), optimizer=matrices)
    moved = different(modules[0].parameters(), before[0].parameters())
    assert [text.split(":")[0] for text in moved] == ["tensor 0", "tensor 2"]

"""A batch that makes something NaN: everybody skips it, and nothing else is changed by it."""

from dataclasses import replace

import pytest
import torch

from contract.small import (
    LOCKSTEP,
    METHODS,
    STAGES,
    WAITING,
    different,
    far,
    sgd,
    tensors_of,
    train,
    values_of,
)
from contract.spoiled import BACKWARD, FORWARD, brittle, marked
from hocket import Checkpoints, Trainer, cross_entropy
from hocket.errors import CheckpointError, NonFiniteError
from hocket.methods import method_options

BATCHES = 6
SPOILED = 2
KINDS = [FORWARD, BACKWARD]
everything = pytest.mark.parametrize("name", METHODS)
anywhere = pytest.mark.parametrize(
    ("stage", "kind"),
    [(stage, kind) for stage in range(3) for kind in KINDS],
    ids=lambda value: {FORWARD: "F", BACKWARD: "B"}.get(value, str(value)),
)


def skipping(name, batches, stages=3, **options):
    """A training that skips; its trainer, its epochs, and its events by stage and kind."""
    events = {}
    # The synthesizers of DNI need small steps on networks as small as these.
    given = {"on_nan": "skip", "lr": 1e-3 if name == "dni" else 0.05} | options
    method = METHODS[name](**given.pop("method", {}))
    trained = train(method, brittle(stages), batches, **given)
    for event in trained.events:
        events.setdefault((event.action.stage, event.action.kind), []).append(event)
    return trained.trainer, trained.history, events


def state_of(trainer):
    """Weights, statistics, auxiliary networks and optimizers, all of them tensors."""
    updaters = [u for stage in trainer.stages for u in (stage.updater, stage.signal_updater)]
    return values_of(trainer) + [v for u in updaters for v in u.optimizer_tensors().values()]


@everything
@anywhere
def test_a_spoiled_batch_leaves_all_finite_and_is_skipped_from_where_it_breaks(
    name, stage, kind
):
    trainer, history, events = skipping(name, marked(BATCHES, {SPOILED: stage + kind}))
    assert all(value.isfinite().all() for value in state_of(trainer))
    assert all(each.persistent_fault() is None for each in trainer.stages)
    assert torch.tensor(history[0].loss).isfinite()
    faults = [
        (k, event.action.kind, event.action.batch, event.report.fault)
        for (k, _), own in events.items()
        for event in own
        if event.report.fault is not None
    ]
    weight = f"gradient of '{stage}.0.linear.weight' became nan"
    seen = "output became nan" if kind == FORWARD else weight
    # The one place that is told: where it began, and nowhere a second time.
    assert faults == [(stage, "F" if kind == FORWARD else "B", SPOILED, seen)]
    if name in LOCKSTEP:
        assert_skipped(name, stage, kind, history, events)


def assert_skipped(name, stage, kind, history, events):
    """Stages that wait for a gradient are done with it where it breaks further ahead only."""
    if name in WAITING:
        expected = [1 if kind == FORWARD or k <= stage else 0 for k in range(3)]
    else:
        broken = range(stage, 3) if kind == FORWARD else [stage]
        expected = [int(k in broken) for k in range(3)]
    assert list(history[0].skipped) == expected
    for k, skipped in enumerate(expected if name in WAITING else []):
        backwards = events[k, "B"]
        assert [event.action.batch for event in backwards] == list(range(BATCHES))
        done = [event.action.batch for event in backwards if not event.report.skipped]
        assert done == [b for b in range(BATCHES) if not (skipped and b == SPOILED)]


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("name", ["bp", "dgl"])
def test_a_batch_that_breaks_at_once_might_as_well_not_have_been_there(name, stages):
    """Without delay nothing else is in flight: bit by bit the training without the batch."""
    batches = marked(BATCHES, {SPOILED: 0 + FORWARD})
    trainer, history, _ = skipping(name, batches, stages)
    without, plain, _ = skipping(
        name, [b for n, b in enumerate(batches) if n != SPOILED], stages
    )
    assert not different(state_of(trainer), state_of(without))
    assert history[0].loss == plain[0].loss
    assert [stage.updater.version for stage in trainer.stages] == [BATCHES - 1] * stages


def test_the_statistics_of_a_head_are_those_without_the_batch():
    """The head was forwarded when the gradient of its stage became NaN."""
    batches = marked(BATCHES, {SPOILED: 0 + BACKWARD})
    kept = [batch for number, batch in enumerate(batches) if number != SPOILED]
    heads = [skipping("dgl", each, 2)[0].stages[0].signal_network for each in (batches, kept)]
    assert any("running_mean" in name for name in heads[0].state_dict())
    assert not different(*(head.state_dict().values() for head in heads))


@everything
def test_one_stage_is_a_plain_loop_without_the_batch(name):
    batches = marked(BATCHES, {SPOILED: 0 + BACKWARD})
    options = {"accumulate": 1} if "accumulate" in method_options(name) else {}
    trainer, history, _ = skipping(name, batches, stages=1, method=options)
    (network,) = brittle(1)
    optimizer = sgd(network.parameters(), lr=1e-3 if name == "dni" else 0.05)
    losses = []
    for number, (x, y) in enumerate(batches):
        loss = cross_entropy(network(x), y)
        if number != SPOILED:  # its forward was finite, and counts in the statistics
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert not different(tensors_of(trainer.network[0]), tensors_of(network))
    assert history[0].loss == sum(sorted(losses)) / len(losses)  # as epochs are summed


def test_accumulated_gradients_are_the_mean_of_those_that_count():
    batches = marked(6, {SPOILED: 0 + FORWARD})
    trainer, _, events = skipping("adl", batches, stages=1, method={"accumulate": 3})
    (network,) = brittle(1)
    optimizer = sgd(network.parameters(), lr=0.05)
    for group in ([0, 1], [3, 4, 5]):
        optimizer.zero_grad()
        for number in group:
            x, y = batches[number]
            (cross_entropy(network(x), y) / len(group)).backward()
        optimizer.step()
    assert not far(tensors_of(trainer.network[0]), tensors_of(network))
    assert [event.report.skipped for event in events[0, "U"]] == [False, False]


def test_an_update_with_no_gradient_at_all_is_none():
    batches = marked(6, dict.fromkeys((2, 3), 0 + FORWARD))
    trainer, _, events = skipping("adl", batches, method={"accumulate": 2})
    for k, stage in enumerate(trainer.stages):
        assert [event.report.skipped for event in events[k, "U"]] == [False, True, False]
        assert stage.updater.version == 2


@pytest.mark.parametrize("name", LOCKSTEP)
def test_a_batch_known_to_be_bad_is_skipped_as_one_that_breaks_at_once(name):
    batches = marked(BATCHES, {SPOILED: 0 + FORWARD})
    broken, history, _ = skipping(name, batches)
    known, other, _ = skipping(name, batches, on_nan="stop", skip_batches=[SPOILED])
    assert not different(state_of(broken), state_of(known))
    assert [replace(epoch, seconds=0.0) for epoch in history] == [
        replace(epoch, seconds=0.0) for epoch in other
    ]


def test_going_on_before_the_batch_with_its_number_is_a_training_that_skips_it(tmp_path):
    """The batch is in flight in some checkpoints, and to come in others."""
    batches = marked(6, {2: 1 + BACKWARD})
    settings = {"method": METHODS["fdg"](), "optimizer": sgd, "resumable": True}
    trainer = Trainer(brittle(3), **settings)
    with pytest.raises(NonFiniteError, match=r"gradient of '1.0.linear.weight'") as caught:
        trainer.fit(
            batches,
            epochs=1,
            progress=False,
            checkpoints=Checkpoints(tmp_path, every=1, keep=99),
        )
    assert caught.value.batch == 2
    places = sorted(tmp_path.glob("tick-*"))
    assert places
    for place in places:
        again = Trainer(brittle(3), skip_batches=[2], **settings)
        again.resume(place)
        (epoch,) = again.fit(batches, epochs=1, progress=False)
        # The last stage may have been done with it.
        assert epoch.skipped[:2] == (1, 1)
        assert all(value.isfinite().all() for value in state_of(again))


def test_statistics_that_become_infinite_unseen_are_a_fault():
    """The output is finite: BatchNorm divides by an infinite deviation."""
    big = torch.tensor([[-1e30], [1e30], [1e30], [1e30]])
    batches = [(torch.randn(4, 1), torch.zeros(4).long()) for _ in range(3)]
    batches[1] = (big, batches[1][1])
    norm = torch.nn.BatchNorm1d(1)
    modules = [torch.nn.Sequential(norm), torch.nn.Linear(1, 3)]
    settings = {"method": METHODS["bp"](), "optimizer": sgd}
    with pytest.raises(NonFiniteError, match=r"the buffer '0.0.running_var' became inf"):
        Trainer(modules, **settings).fit(batches, epochs=1, progress=False)
    assert norm.running_var.isfinite()
    assert norm.num_batches_tracked == 1
    Trainer(modules, on_nan="skip", **settings).fit(batches, epochs=1, progress=False)
    assert norm.running_var.isfinite()
    assert norm.num_batches_tracked == 3


def test_infinite_weights_stop_even_a_training_that_skips():
    trainer, _, _ = skipping("fdg", marked(3, {}))
    with torch.no_grad():
        trainer.network[1][0].linear.weight[0, 0] = torch.inf
    with pytest.raises(NonFiniteError, match=r"the weight '1.0.linear.weight' became inf"):
        trainer.fit(marked(3, {}), epochs=1, progress=False)


def test_an_epoch_that_skips_everything_is_an_error():
    batches = marked(3, dict.fromkeys(range(3), 1 + FORWARD))
    with pytest.raises(NonFiniteError, match="epoch 0: stage 0 has skipped all its 3 batches"):
        skipping("bp", batches)


def test_no_checkpoint_holds_infinite_weights(tmp_path):
    trainer = Trainer(brittle(2), method=METHODS["bp"](), optimizer=sgd, resumable=True)
    trainer.step(*marked(1, {})[0])
    trainer.save(tmp_path)
    trainer.end_epoch()
    for spoiled, words in (
        (trainer.network[1][0].linear.bias, "stage 1: the weight '1.0.linear.bias' became nan"),
        (trainer.network[0][0].norm.running_mean, "the buffer '0.0.norm.running_mean' became"),
        (
            trainer.stages[0].updater.optimizer_tensors()[
                "momentum_buffer of the optimizer for weight '0.0.linear.weight'"
            ],
            "stage 0: the momentum_buffer of the optimizer for weight '0.0.linear.weight' bec",
        ),
    ):
        value = spoiled.flatten()[0].item()
        with torch.no_grad():
            spoiled.flatten()[0] = torch.nan
        with pytest.raises(CheckpointError, match=f"refused: .*{words}"):
            trainer.save(tmp_path)
        with torch.no_grad():
            spoiled.flatten()[0] = value
    assert len(list(tmp_path.iterdir())) == 1
    trainer.save(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_skipped_batch_is_not_compared(kind):
    seen = []
    trainer, _, _ = skipping(
        "fdg",
        marked(BATCHES, {SPOILED: 1 + kind}),
        gradient_error_every=1,
        on_gradient_error=lambda own: seen.append((own.stage, own.batch)),
    )
    # The last stage is done with the batch where it breaks on its way back.
    left_out = {(0, SPOILED), (1, SPOILED)} | ({(2, SPOILED)} if kind == FORWARD else set())
    everywhere = {(stage, batch) for stage in range(3) for batch in range(BATCHES)}
    assert set(seen) == everywhere - left_out
    assert len(seen) == len(set(seen))
    assert trainer.engine._meter.state_dict() == {"batches": {}, "true": {}, "missing": {}}


@pytest.mark.parametrize("on_nan", ["stop", "skip"])
def test_an_epoch_of_nothing_but_batches_that_are_to_be_skipped_is_no_fault(on_nan):
    """One batch comes back to the first stage in the first epoch."""
    trainer = Trainer(brittle(2), method="fdg", optimizer=sgd, on_nan=on_nan, skip_batches=[0])
    first, _ = trainer.fit(marked(3, {}), epochs=2, progress=False)
    assert first.skipped == (1, 1)


class Narrow(torch.nn.Module):
    """A layer that sends numbers of 8 bits."""

    def __init__(self, alone):
        super().__init__()
        self.linear, self.alone = torch.nn.Linear(4, 4), alone

    def forward(self, inputs):
        hidden = self.linear(inputs)
        narrow = hidden.detach().to(torch.float8_e4m3fn)
        return (narrow,) if self.alone else (narrow, hidden)


class Wide(torch.nn.Linear):
    """A layer that adds up what it receives."""

    def forward(self, received):
        return super().forward(sum(value.float() for value in received))


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("check_every", [1, 2])
def test_numbers_of_8_bits_are_searched_too(check_every, alone):
    def steps(inputs):
        modules = [Narrow(alone), Wide(4, 3)]
        trainer = Trainer(modules, optimizer=sgd, check_every=check_every)
        return [trainer.step(inputs, torch.tensor([0, 1])) for _ in range(4)]

    assert all(torch.tensor(steps(torch.ones(2, 4))[1:]).isfinite())
    with pytest.raises(NonFiniteError, match="output 0 became nan" if not alone else "nan"):
        steps(torch.full((2, 4), torch.nan))

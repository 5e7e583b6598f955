"""A training ends after as many updates as it was told, and is evaluated on its way."""

import pytest

from contract.resumed import all_of, differences, resumable
from contract.small import LOCKSTEP, Trained, WatchedBatches, data, mlp, sgd, stepped
from contract.worlds import Case, trained
from hocket import Checkpoints, Trainer
from hocket.errors import OptionError
from hocket.methods import ADL, FDG, METHODS
from hocket.training import fit_state

BATCHES = data(mlp, 5)


def fitted(method, **options):
    events = []
    watch = [lambda event, _: events.append(event)]
    trainer = Trainer(mlp(3), method=method, optimizer=sgd, watchers=watch)
    return Trained(trainer, events, trainer.fit(BATCHES, progress=False, **options))


def updates_of(trained, stage):
    return sum(not event.report.skipped for event in trained.of("U", stage))


DRAINED = [(name, {"epoch_end": "drain"}) for name in ("fdg", "adl", "ddg")]


@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in LOCKSTEP), *DRAINED])
def test_every_stage_makes_as_many_updates(name, options):
    result = fitted(METHODS[name](**options), updates=4)
    assert [updates_of(result, stage) for stage in range(3)] == [4, 4, 4]
    assert result.history[-1].updates == 4


def test_a_drained_epoch_updates_with_what_is_left():
    """Five batches are three updates of two, and the last of these has one."""
    result = fitted(ADL(accumulate=2, epoch_end="drain"), updates=7)
    assert updates_of(result, 0) == 7
    lengths = [(epoch.updates, epoch.samples) for epoch in result.history]
    assert lengths == [(3, 20), (6, 20), (7, 8)]


@pytest.mark.parametrize(
    ("method", "length", "every", "places"),
    [(ADL(accumulate=2), {"updates": 7}, 2, [2, 4, 6]), (FDG(), {"epochs": 2}, 3, [3, 6, 9])],
    ids=["updates", "epochs"],
)
def test_evaluations_come_after_so_many_updates(method, length, every, places):
    seen = []
    fitted(
        method,
        **length,
        validation=data(mlp, 2),
        evaluate_every=every,
        on_evaluation=lambda updates, result: seen.append((updates, result.samples)),
    )
    assert seen == [(place, 8) for place in places]


def test_evaluations_take_none_of_the_time_of_training(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(fit_state.time, "perf_counter", lambda: clock[0])

    def wait_an_hour(*_):
        clock[0] += 3600.0

    def look(updates, result):
        clock[0] += 60.0

    options = {"evaluate_every": 2, "on_evaluation": look}
    batches = WatchedBatches(data(mlp, 2), wait_an_hour)
    history = fitted(FDG(), epochs=2, validation=batches, **options).history
    assert clock[0] > 3600.0 * 4
    assert [epoch.seconds for epoch in history] == [0.0, 0.0]


def test_a_checkpoint_that_is_written_at_an_evaluation_does_not_repeat_it(tmp_path):
    seen = []

    def train(trainer, look):
        trainer.fit(
            BATCHES,
            data(mlp, 2),
            epochs=1,
            progress=False,
            evaluate_every=2,
            on_evaluation=lambda updates, _: look(updates),
        )

    def save(updates):
        seen.append(updates)
        if updates == 4:
            trainer.save(tmp_path)

    trainer = Trainer(mlp(2), optimizer=sgd, resumable=True)
    train(trainer, save)
    assert seen == [2, 4]
    resumed = Trainer(mlp(2), optimizer=sgd, resumable=True)
    assert resumed.resume(tmp_path).updates == 4
    train(resumed, seen.append)
    assert seen == [2, 4]


@pytest.mark.parametrize(
    "case",
    [
        Case("adl", budget=(("updates", 2), ("evaluate_every", 1))),
        Case("fdg", budget=(("updates", 7), ("evaluate_every", 2))),
        Case(
            "adl",
            options=(("accumulate", 2), ("epoch_end", "drain")),
            budget=(("updates", 5), ("evaluate_every", 2)),
        ),
    ],
    ids=str,
)
def test_resumed_after_any_tick_it_is_one_that_never_stopped(case, tmp_path):
    case = resumable(case)
    whole, checkpoints = all_of(case, 2, tmp_path)
    counts = []
    for place in checkpoints:  # the newest first
        resumed = trained(case, 2, resume=place)
        assert not differences(whole, resumed), place.name
        counts.append(len(resumed.evaluations))
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, len(whole.evaluations))


def test_a_resumed_training_may_go_on_for_longer_and_not_end_before_it_began(tmp_path):
    def build():
        return Trainer(mlp(2), method=FDG(), optimizer=sgd, resumable=True)

    first = build()
    first.fit(BATCHES, updates=3, progress=False)
    first.save(tmp_path / "3")
    resumed = build()
    resumed.resume(tmp_path / "3")
    history = resumed.fit(BATCHES, updates=8, progress=False)
    assert [epoch.updates for epoch in history] == [3, 8]
    assert {stage.updater.version for stage in resumed.stages} == {8}
    trainer, checkpoints = build(), Checkpoints(tmp_path / "10", every=100)
    trainer.fit(BATCHES, epochs=2, progress=False, checkpoints=checkpoints)
    for length, told in (
        ({"epochs": 1}, "has done 2 epochs, and is to have 1"),
        ({"updates": 9}, "has done 10 updates, and is to have 9"),
    ):
        resumed = build()
        assert resumed.resume(tmp_path / "10").updates == 10
        with pytest.raises(OptionError, match=told):
            resumed.fit(BATCHES, progress=False, **length)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "epochs is None and updates is None"),
        ({"epochs": 1, "updates": 1}, "epochs is 1 and updates is 1"),
        ({"epochs": 0}, "epochs is 0"),
        ({"epochs": True}, "epochs is True; wanted a whole number"),
        ({"updates": -1}, "updates is -1"),
        ({"updates": 1, "evaluate_every": -1}, "evaluate_every is -1"),
        ({"updates": 1, "evaluate_every": 1}, "evaluate_every is 1, .* give validation data"),
        ({"updates": 1, "on_evaluation": print}, "on_evaluation .* evaluate_every"),
    ],
)
def test_an_impossible_length_is_refused(options, said):
    with pytest.raises(OptionError, match=said):
        Trainer(mlp(2), optimizer=sgd).fit(BATCHES, progress=False, **options)


@pytest.mark.parametrize("before", ["fit", "step"])
@pytest.mark.parametrize("name", ["adl", "bp", "paci", "dgl"])
def test_a_group_that_was_begun_before_counts_for_the_next_updates(name, before):
    """Two batches of a group of four have entered when the updates are asked for."""
    trainer = Trainer(mlp(3), method=METHODS[name](accumulate=4), optimizer=sgd)
    if before == "fit":
        trainer.fit(BATCHES[:2], epochs=1, progress=False)
    else:
        stepped(trainer, BATCHES[:2])
    done = [stage.updater.version for stage in trainer.stages]
    history = trainer.fit(BATCHES, updates=2, progress=False)
    made = [stage.updater.version for stage in trainer.stages]
    assert [after - start for start, after in zip(done, made, strict=True)] == [2, 2, 2]
    assert history[-1].updates == 2


def test_a_group_that_finish_completes_counts_for_none_later():
    trainer = stepped(Trainer(mlp(3), method=ADL(accumulate=4), optimizer=sgd), BATCHES)
    trainer.finish()
    assert [stage.updater.version for stage in trainer.stages] == [2, 2, 2]
    trainer.fit(BATCHES, updates=2, progress=False)
    assert [stage.updater.version for stage in trainer.stages] == [4, 4, 4]

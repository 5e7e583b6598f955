"""The first Ctrl-C asks, the second one ends; outside everything is as it was."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from unittest.mock import patch

import pytest
from torch.distributed import HashStore

from contract.small import WatchedBatches, data, different, mlp, sgd, stepped
from hocket import Checkpoints, Trainer
from hocket.distributed.world.common_end import CommonEnd
from hocket.methods import METHODS
from hocket.training.fit.interrupt import (
    Interrupt,
    before_batch,
    ctrl_c_held_back,
    stop_signals,
)
from hocket.training.fit.interrupt import heard as heard_signals
from hocket.training.session import ticks


@pytest.fixture(autouse=True)
def heard():
    """The signals that a handler from before hears; it is there again at the end."""
    heard = []

    def hear(number, frame):
        heard.append(number)

    before = signal.signal(signal.SIGINT, hear)
    yield heard
    assert signal.signal(signal.SIGINT, before) in (hear, signal.SIG_IGN)


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_only_asks_and_the_second_one_raises(heard, first):
    """Afterwards the handler from before hears again."""
    before = signal.getsignal(signal.SIGTERM)
    with Interrupt((signal.SIGINT, signal.SIGTERM)) as interrupt:
        assert not interrupt.asked
        signal.raise_signal(first)
        assert interrupt.asked == first
        with pytest.raises(KeyboardInterrupt) as ended:
            signal.raise_signal(signal.SIGINT)
    assert ended.value.args == (signal.SIGINT,)
    assert heard == []
    assert signal.getsignal(signal.SIGTERM) is before
    signal.raise_signal(signal.SIGINT)
    assert heard == [signal.SIGINT]


def test_outside_the_main_thread_it_changes_nothing(heard):
    def inside():
        with Interrupt() as interrupt:
            signal.raise_signal(signal.SIGINT)
            return interrupt.asked

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(inside).result() == 0
    assert heard == [signal.SIGINT]


def test_a_thread_hears_of_a_signal_before_its_next_batch():
    told = iter([0, 0, signal.SIGTERM])

    def inside():
        before_batch.set(lambda: next(told))
        with Interrupt() as interrupt:
            return list(interrupt.until_asked(range(9))), interrupt.asked

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(inside).result() == ([0, 1], signal.SIGTERM)


def test_a_handler_that_was_not_set_from_python_becomes_the_default(monkeypatch):
    mine = signal.getsignal(signal.SIGINT)
    with Interrupt() as interrupt:
        monkeypatch.setattr(interrupt, "_before", {signal.SIGINT: None})
    assert signal.signal(signal.SIGINT, mine) is signal.SIG_DFL


@pytest.mark.parametrize("end", [None, CommonEnd(HashStore(), 0, 1)], ids=["alone", "replicas"])
def test_a_batch_that_is_being_read_is_given_up_except_among_replicas(heard, end):
    """They have to stop at the same one."""

    def batches():
        yield 0
        signal.raise_signal(signal.SIGINT)
        assert end, "the batch was read to its end"
        yield from range(9)

    with Interrupt() as interrupt:
        assert len(list(interrupt.until_asked(batches(), end))) == (2 if end else 1)
        assert interrupt.asked == signal.SIGINT
    assert heard == []


def test_no_batch_is_begun_after_a_signal(heard):
    """Reading it may take longer than the process has."""

    def batches():
        yield 0
        pytest.fail("another batch was read")

    with Interrupt() as interrupt:
        read = interrupt.until_asked(batches())
        assert next(read) == 0
        signal.raise_signal(signal.SIGINT)
        assert list(read) == []


def loader(count, *stop):
    """Batches; a signal comes while one is read, if an epoch and a batch are given."""

    def read(*place):
        if place == stop:
            signal.raise_signal(signal.SIGTERM)
            pytest.fail("the batch was read to its end")

    return WatchedBatches(data(mlp, count), read)


def fit(train, validation, folder, *, resume=False, method="fdg"):
    """Train for two epochs; return the losses, or the signal, and the weights."""
    trainer = Trainer(mlp(2), method=METHODS[method](), optimizer=sgd, resumable=True)
    if resume:
        trainer.resume(folder)
    try:
        history = trainer.fit(
            train, validation, epochs=2, progress=False, checkpoints=Checkpoints(folder)
        )
    except KeyboardInterrupt as stop:
        return stop.args
    return (
        [(epoch.loss, epoch.evaluation.loss) for epoch in history],
        [value.tolist() for value in trainer.network.state_dict().values()],
    )


@pytest.mark.parametrize("method", ["fdg", "bp"])
@pytest.mark.parametrize(
    ("train_at", "validation_at"), [((1, 2), ()), ((), (0, 0)), ((), (1, 2))]
)
def test_sigterm_in_a_long_read_or_an_evaluation_leaves_a_checkpoint_of_that_moment(
    train_at, validation_at, method, tmp_path
):
    whole = fit(loader(4), loader(3), tmp_path / "a", method=method)
    stopped = loader(4, *train_at), loader(3, *validation_at)
    assert fit(*stopped, tmp_path / "b", method=method) == (signal.SIGTERM,)
    again = loader(4), loader(3)
    assert fit(*again, tmp_path / "b", resume=True, method=method) == whole
    assert again[0].readings + stopped[0].readings <= 3  # no epoch is trained again


def press_in_tick_5(number=signal.SIGINT):
    """Return a watcher that raises a signal at the forward of the first stage."""

    def press(event, stage):
        if (event.tick, event.action.stage, event.action.kind) == (5, 0, "F"):
            signal.raise_signal(number)

    return press


@pytest.mark.parametrize(
    ("method", "number"),
    [*((m, signal.SIGINT) for m in ("fdg", "bp", "dgl-async")), ("bp", signal.SIGTERM)],
)
def test_a_signal_without_checkpoints_ends_between_two_ticks(method, number):
    """So that the trainer goes on where it was, in a notebook for example."""
    batches, options = data(mlp, 8), {"optimizer": sgd, "method": METHODS[method]()}
    trainer = Trainer(mlp(2), watchers=[press_in_tick_5(number)], **options)
    with pytest.raises(KeyboardInterrupt) as ended:
        trainer.fit(batches, epochs=1, progress=False)
    assert ended.value.args == (number,)
    (epoch,) = trainer.fit(batches, epochs=1, progress=False)
    assert epoch.loss > 0
    if method != "dgl-async":
        wanted = stepped(Trainer(mlp(2), **options), [*batches[:6], *batches])
        wanted.finish()
        assert not different(trainer.network.parameters(), wanted.network.parameters())


@pytest.mark.parametrize("handler", ["default", "own"])
@pytest.mark.parametrize("method", ["fdg", "bp"])
def test_ctrl_c_in_a_loop_of_steps_waits_for_the_end_of_the_tick(heard, method, handler):
    if handler == "default":
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def press(weights, stage):
        if stage == 0:
            signal.raise_signal(signal.SIGINT)
        return sgd(weights)

    batches, method = data(mlp, 8), METHODS[method]()
    trainer = Trainer(mlp(2), method=method, optimizer=press, watchers=[press_in_tick_5()])
    wanted = stepped(Trainer(mlp(2), method=method, optimizer=sgd), batches)
    for number, batch in enumerate(batches):
        stops = number in (0, 5) and handler == "default"
        with pytest.raises(KeyboardInterrupt) if stops else nullcontext():
            trainer.step(*batch)
    assert heard == ([] if handler == "default" else [signal.SIGINT] * 2)
    for each in (trainer, wanted):
        each.finish()
    assert not different(trainer.network.parameters(), wanted.network.parameters())
    if handler == "default":
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def test_ctrl_c_between_two_ticks_loses_no_batch():
    trainer, stop = stepped(Trainer(mlp(2), optimizer=sgd), data(mlp, 2)), KeyboardInterrupt
    with patch.object(ticks, "check_pending", side_effect=stop), pytest.raises(stop):
        trainer.evaluate(data(mlp, 1))
    stepped(trainer, data(mlp, 2))


def test_ctrl_c_in_a_tick_that_fails_is_heard_as_well(heard):
    with suppress(ValueError), ctrl_c_held_back():
        signal.raise_signal(signal.SIGINT)
        raise ValueError
    assert heard == [signal.SIGINT]


def test_among_several_processes_a_second_signal_does_nothing(heard, monkeypatch):
    """A launcher passes on a signal that has reached all processes of its job."""
    monkeypatch.setattr("hocket.training.fit.interrupt.current_identity", object)
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)
    assert interrupt.asked == signal.SIGINT
    assert heard == []


@pytest.fixture
def _failing_workers():
    """Let the end of a worker of a loader be an error, as it is in PyTorch."""

    def fail(number, frame):
        raise RuntimeError("a worker has ended")

    before = signal.signal(signal.SIGCHLD, fail)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("_failing_workers")
def test_the_end_of_a_worker_of_a_loader_is_no_error_after_a_signal():
    """As one that ends all processes of a job."""
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGCHLD)
    assert interrupt.asked
    with pytest.raises(RuntimeError, match="worker"):
        signal.raise_signal(signal.SIGCHLD)


@pytest.mark.usefixtures("_failing_workers")
@pytest.mark.parametrize("reading", [False, True])
@pytest.mark.parametrize("stops", [False, True])
def test_the_end_of_a_worker_waits_for_the_end_of_a_tick(stops, reading, monkeypatch):
    """It stops the batches quietly if a signal to the whole job has ended the worker."""
    limit_s = 60 if stops else 0.1
    monkeypatch.setattr("hocket.training.fit.interrupt.SIGNAL_FOLLOWS_S", limit_s)

    def loader():
        yield 0
        if reading:
            end_worker()
        yield 1

    def end_worker():
        if stops:
            threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()
        signal.raise_signal(signal.SIGCHLD)

    seen = []
    outcome = nullcontext() if stops else pytest.raises(RuntimeError, match="worker")
    with Interrupt() as interrupt, outcome:
        for batch in interrupt.until_asked(loader()):
            seen.append(batch)
            if not reading:
                end_worker()
    assert seen == [0]
    assert bool(interrupt.asked) == stops


@pytest.mark.usefixtures("_failing_workers")
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGCHLD])
def test_replicas_read_on_without_a_worker_only_after_a_signal(first):
    """One that left the others alone would let them wait for its gradients."""
    seen, asked_first = [], first == signal.SIGINT
    outcome = nullcontext() if asked_first else pytest.raises(RuntimeError, match="worker")
    with Interrupt() as interrupt, outcome:
        for batch in interrupt.until_asked(range(100), CommonEnd(HashStore(), 0, 1)):
            seen.append(batch)
            if batch == 0:
                signal.raise_signal(first)
                signal.raise_signal(signal.SIGCHLD)
    assert len(seen) == (2 if asked_first else 1)


def test_a_signal_that_is_ignored_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as for a program in the background

    def press(event, stage):
        signal.raise_signal(signal.SIGINT)

    trainer = Trainer(mlp(2), optimizer=sgd, watchers=[press])
    assert len(trainer.fit(data(mlp, 2), epochs=2, progress=False)) == 2
    assert heard_signals((signal.SIGINT, signal.SIGTERM)) == (signal.SIGTERM,)


def test_a_signal_before_the_first_batch_leaves_nothing_to_resume(tmp_path):
    assert fit(loader(4, 0, 0), None, tmp_path) == (signal.SIGTERM,)
    assert not list(tmp_path.glob("tick-*"))


def test_sighup_asks_for_the_end_unless_it_is_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        assert stop_signals() == (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        assert stop_signals() == (signal.SIGINT, signal.SIGTERM)
    finally:
        signal.signal(signal.SIGHUP, before)

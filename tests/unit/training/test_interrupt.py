"""The first Ctrl-C asks, the second one ends; outside everything is as it was."""

import signal
import threading

import pytest
from torch.distributed import HashStore

from hocket.training.interrupt import AHEAD, Interrupt


@pytest.fixture(autouse=True)
def heard():
    """The signals that a handler from before hears; it is there again at the end."""
    heard = []

    def hear(number, frame):
        heard.append(number)

    before = signal.signal(signal.SIGINT, hear)
    yield heard
    assert signal.signal(signal.SIGINT, before) is hear


def test_the_first_one_only_asks(heard):
    with Interrupt() as interrupt:
        assert not interrupt.asked
        signal.raise_signal(signal.SIGINT)
        assert interrupt.asked
    assert heard == []


def test_it_tells_which_signal_asked_of_those_that_may(heard):
    before = signal.getsignal(signal.SIGTERM)
    with Interrupt((signal.SIGINT, signal.SIGTERM)) as interrupt:
        signal.raise_signal(signal.SIGTERM)
        assert interrupt.asked == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt) as ended:
            signal.raise_signal(signal.SIGINT)
    assert ended.value.args == (signal.SIGINT,)
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_second_one_raises(heard):
    with Interrupt():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert heard == []


def test_afterwards_the_handler_from_before_hears(heard):
    with Interrupt():
        pass
    signal.raise_signal(signal.SIGINT)
    assert heard == [signal.SIGINT]


def test_outside_the_main_thread_it_changes_nothing(heard):
    found = []

    def inside():
        with Interrupt() as interrupt:
            signal.raise_signal(signal.SIGINT)
            found.append(interrupt.asked)

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert found == [False]
    assert heard == [signal.SIGINT]


def test_a_handler_that_was_not_set_from_python_becomes_the_default(monkeypatch):
    mine = signal.getsignal(signal.SIGINT)
    with Interrupt() as interrupt:
        monkeypatch.setattr(interrupt, "_before", {signal.SIGINT: None})
    assert signal.signal(signal.SIGINT, mine) is signal.SIG_DFL


def test_one_alone_stops_at_once(heard):
    with Interrupt() as interrupt:
        batches = interrupt.until_asked(range(10))
        assert [next(batches), next(batches)] == [0, 1]
        signal.raise_signal(signal.SIGINT)
        assert list(batches) == []


@pytest.mark.parametrize("first", [0, 1])
def test_replicas_stop_at_the_same_batch_whoever_is_asked(heard, first):
    store = HashStore()
    with Interrupt() as one, Interrupt() as other:
        replicas = [r.until_asked(range(100), store) for r in (one, other)]
        for _ in range(3):
            assert next(replicas[0]) == next(replicas[1])
        next(replicas[1])  # is one ahead
        (one, other)[first].asked = True
        gone = [list(replicas[first])]
        gone.append(list(replicas[1 - first]))
        assert gone[0][-1] == gone[1][-1] == (3, 4)[first] + AHEAD - 1

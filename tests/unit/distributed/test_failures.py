"""The first failure and the process that hangs, as every process reports them."""

import threading
import time
from queue import Empty, Queue

import pytest
from torch.distributed import HashStore

from hocket.distributed import failures
from hocket.distributed.failures import FailureDetector
from hocket.errors import HangError, PeerFailedError, PeerLostError

NAMES = ["stage 0", "stage 1", "stage 2"]
TIMEOUT_S = 0.32  # every process looks for requests 50 times a second


@pytest.fixture
def detectors():
    """The failure detectors of three processes; one that is closed does not answer."""
    store = HashStore()
    built = [FailureDetector(store, NAMES, rank, TIMEOUT_S) for rank in range(3)]
    yield built
    for detector in built:
        detector.close()


@pytest.fixture(autouse=True)
def _short_timeouts(monkeypatch):
    monkeypatch.setattr(failures, "STORE_TIMEOUT_S", 0.5)
    monkeypatch.setattr(failures, "STATUS_TIMEOUT_S", 0.5)


def build_error(message="the reason", note=""):
    error = ValueError(message)
    if note:
        error.add_note(note)
    return error


def wait_forever(detector, activity, rank):
    """Make a process wait for another one until the test ends."""
    detector.waiting_for(activity, rank).__enter__()


# The first failure.


def test_every_process_ends_with_the_first_failure(detectors):
    assert detectors[1].report(build_error("mine", note="(stage 1, batch 4)"))
    assert not detectors[2].report(build_error("a consequence"))
    for other in (detectors[0], detectors[2]):
        error = other.peer_lost(1, "reset")
        assert type(error) is PeerFailedError
        assert str(error) == "stage 1 failed: ValueError: mine\n(stage 1, batch 4)"


def test_the_first_failure_stays_when_its_process_reports_again(detectors):
    assert detectors[1].report(build_error("mine"))
    assert detectors[1].report(build_error("mine, with a note"))
    assert str(detectors[0].peer_lost(1, "reset")) == "stage 1 failed: ValueError: mine"


def test_a_process_that_ends_because_another_failed_reports_nothing(detectors):
    assert not detectors[0].report(PeerFailedError("stage 1 failed"))
    assert type(detectors[2].peer_lost(None, "reset")) is PeerLostError


def test_a_failure_that_is_recorded_a_little_late_is_waited_for(detectors):
    timer = threading.Timer(0.1, detectors[1].report, [build_error("late")])
    timer.start()
    assert str(detectors[0].peer_lost(1, "reset")) == "stage 1 failed: ValueError: late"
    timer.join()


def test_listeners_are_called_after_a_failure(detectors):
    heard = Queue()
    for detector in detectors:
        detector.add_listener(heard.put)
    with pytest.raises(Empty):
        heard.get(timeout=2 * TIMEOUT_S / 16)
    detectors[1].report(build_error("mine"))
    for _ in detectors:
        error = heard.get(timeout=10)
        assert type(error) is PeerFailedError
        assert str(error) == "stage 1 failed: ValueError: mine"


# Lost processes.


def test_a_process_that_dies_silently_is_named_with_the_current_activity(detectors):
    with detectors[0].waiting_for("waiting for gradient 3 from stage 1", 1):
        error = detectors[0].peer_lost(1, "reset by peer")
    assert type(error) is PeerLostError
    assert str(error).startswith("the connection to stage 1 is gone, and it did not say why")
    assert str(error).endswith("(stage 0 was waiting for gradient 3 from stage 1)")
    assert error.__notes__ == ["(the connection said: reset by peer)"]
    assert str(detectors[2].peer_lost(1, "reset by peer")) == str(error)


def test_a_collective_does_not_tell_which_process_is_gone(detectors):
    error = detectors[0].peer_lost(None, "x")
    assert str(error).startswith("the connection to another process is")


@pytest.mark.parametrize("rank", [1, None])
def test_a_process_that_has_left_was_not_killed(detectors, rank):
    detectors[1].announce_exit()
    with detectors[0].waiting_for("gathering", None):
        message = str(detectors[0].peer_lost(rank, "x"))
    assert message == (
        "the connection to stage 1 is gone, and it has already left the training; call fit, "
        "evaluate and everything else that needs all stages in all processes (stage 0 was "
        "gathering)"
    )


# Hangs.


def test_a_process_that_computes_for_too_long_is_named_with_its_activity(detectors):
    detectors[1].set_activity("executing F1.4 in tick 5")
    error = detectors[0].peer_timed_out(1, "gradient 3 from stage 1")
    assert type(error) is HangError
    assert str(error) == (
        "stage 0 waited 0.32 s for gradient 3 from stage 1; stage 1 has been executing F1.4 in "
        "tick 5 for 0 s; if nothing hangs, increase timeout_s"
    )


def test_the_chain_of_waits_is_followed_to_its_end(detectors):
    wait_forever(detectors[1], "waiting for gradient 5 from stage 2", 2)
    detectors[2].set_activity("reading a file")
    message = str(detectors[0].peer_timed_out(1, "gradient 3"))
    assert "; stage 2 has been reading a file for" in message


def test_the_chain_of_waits_may_end_at_a_process_that_does_not_answer(detectors):
    wait_forever(detectors[1], "waiting for gradient 5 from stage 2", 2)
    detectors[2].close()
    message = str(detectors[0].peer_timed_out(1, "gradient 3"))
    assert "; stage 2 does not answer: it is stopped, or cut off; if nothing" in message


def test_a_chain_of_waits_that_comes_back_names_the_process_before(detectors):
    wait_forever(detectors[1], "waiting for stage 2", 2)
    wait_forever(detectors[2], "waiting for stage 0", 0)
    message = str(detectors[0].peer_timed_out(1, "gradient"))
    assert "; stage 2 has been waiting for stage 0 for" in message


def test_a_loop_of_waits_among_others_ends(detectors):
    wait_forever(detectors[1], "waiting for stage 2", 2)
    wait_forever(detectors[2], "waiting for stage 1", 1)
    message = str(detectors[0].peer_timed_out(1, "gradient"))
    assert "; stage 2 has been waiting for stage 1 for" in message


def test_two_processes_that_notice_a_hang_report_the_same(detectors):
    first = detectors[0].peer_timed_out(2, "gradient 3")
    second = detectors[1].peer_timed_out(2, "activation 4")
    assert type(first) is HangError
    assert type(second) is PeerFailedError
    assert str(second) == str(first)


def test_a_known_failure_is_reported_instead_of_a_hang(detectors):
    detectors[2].report(build_error())
    message = str(detectors[0].peer_timed_out(2, "x"))
    assert message == "stage 2 failed: ValueError: the reason"


def test_the_activity_before_a_wait_returns_after_it(detectors):
    detectors[1].set_activity("going on")
    with detectors[1].waiting_for("waiting for stage 2", 2):
        pass
    message = str(detectors[0].peer_timed_out(1, "gradient 3"))
    assert "; stage 1 has been going on for" in message


def test_a_wait_that_ended_in_an_error_stays_the_activity(detectors):
    with (
        pytest.raises(ValueError, match="inside"),
        detectors[1].waiting_for("waiting for 2", 2),
    ):
        raise ValueError("inside")
    message = str(detectors[0].peer_timed_out(1, "gradient 3"))
    assert "; stage 2 has been starting for" in message


def test_a_process_that_has_left_is_not_called_stopped(detectors):
    detectors[1].announce_exit()
    detectors[1].close()
    message = str(detectors[0].peer_timed_out(1, "gradient 3"))
    assert "; stage 1 is not there any more: it has already left the training; call " in message


# Collectives.


def test_a_process_that_does_not_take_part_is_named(detectors):
    wait_forever(detectors[1], "gathering", None)
    detectors[2].set_activity("executing F2.0 in tick 0")
    error = detectors[0].peers_missing("gathering")
    assert type(error) is HangError
    assert str(error).startswith(
        "stage 0 waited 0.32 s for all processes to take part in gathering; stage 2 has been "
        "executing F2.0 in tick 0 for"
    )


def test_a_process_that_does_not_answer_does_not_take_part(detectors):
    wait_forever(detectors[1], "gathering", None)
    detectors[2].close()
    message = str(detectors[0].peers_missing("gathering"))
    assert "all processes to take part in gathering; stage 2 does not answer" in message


def test_some_process_is_named_even_if_all_take_part_after_all(detectors):
    for detector in detectors:
        wait_forever(detector, "gathering", None)
    message = str(detectors[0].peers_missing("gathering"))
    assert "; stage 1 has been gathering for" in message


# Barriers.


def wait_in_thread(detector):
    """Wait for all in another thread; return it and the list for its outcome."""
    outcome = []

    def wait():
        try:
            detector.wait_for_all()
            outcome.append("met")
        except (PeerFailedError, HangError) as error:
            outcome.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread, outcome


def test_all_continue_once_all_have_arrived(detectors):
    waiting = [wait_in_thread(detectors[0]), wait_in_thread(detectors[2])]
    time.sleep(0.05)
    assert [outcome for _, outcome in waiting] == [[], []]
    detectors[1].wait_for_all()
    for thread, outcome in waiting:
        thread.join()
        assert outcome == ["met"]


def test_a_failure_before_the_barrier_ends_the_wait_of_all(detectors):
    waiting = [wait_in_thread(detectors[0]), wait_in_thread(detectors[2])]
    detectors[1].report(build_error("early"))
    for thread, outcome in waiting:
        thread.join()
        assert type(outcome[0]) is PeerFailedError
        assert str(outcome[0]) == "stage 1 failed: ValueError: early"


def test_a_process_that_does_not_arrive_is_named(detectors):
    thread, outcome = wait_in_thread(detectors[2])
    with pytest.raises(
        (HangError, PeerFailedError), match=r"stage [02] waited 0.32 s for all processes to"
    ):
        detectors[0].wait_for_all()
    thread.join()
    assert "build their Trainer; stage 1 has not done so; if nothing" in str(outcome[0])
    with pytest.raises(PeerFailedError, match="stage 1 has not done so"):
        detectors[1].wait_for_all()  # too late


# Without a store.


class LostStore:
    """A store whose host has died."""

    def check(self, keys):
        raise RuntimeError("connection refused")

    def set(self, key, value):
        raise RuntimeError("connection refused")

    def compare_set(self, *_):
        raise RuntimeError("connection refused")


def test_without_a_store_every_process_reports_what_it_knows():
    detector = FailureDetector(LostStore(), NAMES, 0, TIMEOUT_S)
    assert type(detector.peer_lost(1, "reset")) is PeerLostError
    assert type(detector.peer_timed_out(1, "gradient 3")) is HangError
    assert "stage 1 does not answer" in str(detector.peers_missing("gathering"))
    assert detector.report(build_error())
    with pytest.raises(HangError, match="stage 0, stage 1, stage 2 have not done so"):
        detector.wait_for_all()
    detector.close()

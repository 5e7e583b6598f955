"""The first failure and the process that hangs, as every process reports them."""

import math
import re
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from torch.distributed import HashStore

from contract.processes import wait_until
from hocket.distributed.failures import detector as failures
from hocket.distributed.failures import first_failure, store_client
from hocket.distributed.failures.detector import STATUS_REQUEST_KEY, FailureDetector
from hocket.distributed.failures.phases import Phase, RunningClock, Status, TimeLimits
from hocket.distributed.folder.identity import ProcessIdentity
from hocket.distributed.world.membership import Membership
from hocket.errors import HangError, HocketError, PeerFailedError, PeerLostError

NAMES = ["stage 0", "stage 1", "stage 2"]
TIMEOUT_S = 0.32  # every process looks for requests 50 times a second
SLOW_TIMEOUT_S = 60.0
LIMITS = TimeLimits(TIMEOUT_S, SLOW_TIMEOUT_S)
silent = []
"""Ranks of processes that a detector has found silent."""
at_work = []
"""Ranks of those that hold the interpreter, and are at work."""


def note_silence(rank):
    silent.append(rank)
    return rank not in at_work


@pytest.fixture
def detectors():
    """The failure detectors of three processes; one that is closed does not answer."""
    store = HashStore()
    silent.clear()
    at_work.clear()
    built = [
        FailureDetector(store, NAMES, rank, LIMITS, is_silent=note_silence) for rank in range(3)
    ]
    yield built
    for detector in built:
        detector.close()


@pytest.fixture(autouse=True)
def _timeouts(monkeypatch):
    """Wait shortly for a failure that nobody records, and long for an answer of another one."""
    monkeypatch.setattr(failures, "STORE_TIMEOUT_S", 0.5)
    monkeypatch.setattr(failures, "STATUS_TIMEOUT_S", 60.0)


@pytest.fixture
def silence(detectors, monkeypatch):
    """A function that lets a process answer no more; others have some seconds to answer."""

    def silence(rank):
        monkeypatch.setattr(failures, "STATUS_TIMEOUT_S", 3.0)
        detectors[rank].close()
        detectors[rank]._thread.join()

    return silence


def wait_forever(detector, activity, rank):
    """Make a process wait for another one until the test ends."""
    detector.waiting_for(activity, [rank], "it").__enter__()


def end_of_wait(detector, rank, awaited="gradient 3"):
    """Return the error in which a wait for a process ends."""
    with (
        pytest.raises(HocketError) as caught,
        detector.waiting_for(f"waiting for {awaited}", [rank], awaited) as wait,
    ):
        wait.finish(Unfinished())
    return caught.value


# The first failure.


def test_every_process_ends_with_the_first_failure(detectors):
    error = ValueError("mine")
    error.add_note("(stage 1, batch 4)")
    assert detectors[1].record.report(error)
    assert not detectors[2].record.report(ValueError("a consequence"))
    assert detectors[1].record.report(ValueError("mine, with a note"))
    for other in (detectors[0], detectors[2]):
        error = other.peer_lost(1, "reset")
        assert type(error) is PeerFailedError
        assert str(error) == "stage 1 failed: ValueError: mine\n(stage 1, batch 4)"


def test_a_process_that_ends_because_another_failed_reports_nothing(detectors):
    assert not detectors[0].record.report(PeerFailedError("stage 1 failed"))
    assert type(detectors[2].peer_lost(None, "reset")) is PeerLostError


def test_a_failure_that_is_recorded_a_little_late_is_waited_for(detectors, monkeypatch):
    monkeypatch.setattr(failures, "STORE_TIMEOUT_S", 60.0)
    timer = threading.Timer(0.1, detectors[1].record.report, [ValueError("late")])
    timer.start()
    assert str(detectors[0].peer_lost(1, "reset")) == "stage 1 failed: ValueError: late"
    timer.join()


def test_a_failure_ends_every_wait_soon_also_one_at_a_barrier(detectors):
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(barriers_of(detectors[n]).wait_for_all) for n in (0, 2)]
        detectors[1].record.report(ValueError("mine"))
        for detector in detectors:
            wait_until(lambda record=detector.record: record.known is not None)
            with pytest.raises(PeerFailedError, match="stage 1 failed: ValueError: mine"):
                detector.raise_if_failed()
    for each in waiting:
        with pytest.raises(PeerFailedError, match=r"^stage 1 failed: ValueError: mine$"):
            each.result()


# Lost processes.


@pytest.mark.parametrize(("rank", "gone"), [(1, "stage 1"), (None, "another process")])
def test_a_process_that_dies_silently_is_named_with_the_current_activity(detectors, rank, gone):
    """A collective does not tell which one is gone."""
    with detectors[0].waiting_for("waiting for gradient 3 from stage 1", [1], "it"):
        error = detectors[0].peer_lost(rank, "reset by peer")
    assert type(error) is PeerLostError
    assert str(error).startswith(f"the connection to {gone} is gone, and it did not say why")
    assert str(error).endswith("(stage 0 was waiting for gradient 3 from stage 1)")
    assert error.__notes__ == ["(the connection said: reset by peer)"]
    assert str(detectors[2].peer_lost(1, "reset by peer")) == str(error)


@pytest.mark.parametrize("rank", [1, None])
def test_a_process_that_has_left_was_not_killed(detectors, rank):
    detectors[1].announce_exit()
    with detectors[0].waiting_for("gathering", [1, 2], "all"):
        message = str(detectors[0].peer_lost(rank, "x"))
    assert "stage 1 is gone, and it has already left the training" in message
    assert message.endswith("(stage 0 was gathering)")


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (RuntimeError("reset by peer"), PeerLostError, "another process is gone"),
        (torch.OutOfMemoryError("CUDA out of memory"), torch.OutOfMemoryError, "CUDA out of"),
        (RuntimeError("DataLoader worker is killed"), RuntimeError, "^DataLoader worker"),
    ],
    ids=["connection", "GPU", "loader"],
)
def test_an_error_of_this_process_in_a_collective_is_no_lost_process(
    detectors, error, kind, told
):
    with pytest.raises(kind, match=told), detectors[0].collective("gathering", range(3)):
        raise error


# Hangs.


def test_an_action_has_a_limit(detectors):
    detectors[1].set_activity("executing F1.4 in tick 5")
    error = end_of_wait(detectors[0], 1, "gradient 3 from stage 1")
    assert type(error) is HangError
    assert re.fullmatch(
        r"stage 0 waited \d+ s for gradient 3 from stage 1; stage 1 has been executing F1.4 in "
        r"tick 5 for \d+ s; if nothing hangs, increase timeout_s \(0.32\)",
        str(error),
    )
    assert silent == []


def test_a_slow_phase_has_a_limit(detectors):
    detectors[0].limits = TimeLimits(TIMEOUT_S, 2 * TIMEOUT_S)
    with detectors[1].in_phase(Phase.READING):
        message = str(end_of_wait(detectors[0], 1))
    assert "; stage 1 has been reading the data for" in message
    assert message.endswith("if nothing hangs, increase slow_timeout_s (0.64)")


def test_a_process_that_does_not_answer_is_reported_to_the_launcher(detectors, silence):
    wait_forever(detectors[1], "waiting for gradient 5 from stage 2", 2)
    silence(2)
    message = str(end_of_wait(detectors[0], 1))
    assert "; stage 2 does not answer: it is stopped, or cut off; if nothing" in message
    assert silent == [2]


def test_a_process_that_is_at_work_may_be_silent_for_as_long_as_a_slow_phase(
    detectors, silence
):
    at_work.append(2)
    silence(2)
    assert detectors[0].examine(Status("waiting", (2,)), "it", 59.0) == TIMEOUT_S
    with pytest.raises(HangError, match="stage 2 does not answer"):
        detectors[0].examine(Status("waiting", (2,)), "it", SLOW_TIMEOUT_S)
    assert silent == [2, 2]


def test_two_processes_that_notice_a_hang_report_the_same(detectors):
    detectors[2].set_activity("executing F2.0")
    first, second = end_of_wait(detectors[0], 2), end_of_wait(detectors[1], 2)
    assert type(first) is HangError
    assert type(second) is PeerFailedError
    assert str(second) == str(first)


def test_a_known_failure_is_reported_instead_of_a_hang(detectors):
    detectors[2].record.report(ValueError("the reason"))
    assert str(end_of_wait(detectors[0], 2)) == "stage 2 failed: ValueError: the reason"
    with pytest.raises(PeerFailedError, match="stage 2 failed: ValueError: the reason"):
        detectors[1].examine(Status("waiting", (2,)), "it", 1.0)


def test_a_wait_that_is_over_counts_as_progress_of_the_phase_around_it(monkeypatch):
    detector = FailureDetector(HashStore(), NAMES, 0, LIMITS)
    detector.close()  # its thread reads the clock
    seconds = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: seconds)
    detector._clock = RunningClock(most_s=100.0)
    detector.set_activity("executing F1.4")
    seconds = 5.0
    assert detector.activity == Status("executing F1.4", seconds=5.0)
    with detector.waiting_for("waiting", [1], "it"):
        seconds = 12.0
        assert detector.activity == Status("waiting", (1,), seconds=7.0)
    assert detector.activity == Status("executing F1.4")


def test_a_wait_that_ended_in_an_error_stays_the_activity(detectors):
    detectors[2].set_activity("executing F2.0")
    with (
        pytest.raises(ValueError, match="inside"),
        detectors[1].waiting_for("waiting for 2", [2], "it"),
    ):
        raise ValueError("inside")
    assert "; stage 2 has been executing F2.0 for" in str(end_of_wait(detectors[0], 1))


def test_a_process_that_has_left_is_not_called_stopped(detectors, silence):
    detectors[1].announce_exit()
    silence(1)
    message = str(end_of_wait(detectors[0], 1))
    assert "; stage 1 is not there any more: it has already left the training; call " in message
    assert silent == []


def test_a_process_that_left_before_a_common_operation_ends_the_wait_at_once(detectors):
    detectors[1].limits = detectors[0].limits = TimeLimits(60.0, 60.0)
    for detector in detectors:  # in the first one all take part
        with detector.collective("the first", range(3)):
            pass
    detectors[1].announce_exit()
    with detectors[0].collective("the first again, which is the second", range(3)) as finish:
        start_s = time.monotonic()
        with pytest.raises(PeerLostError, match=r"take part in the first.*stage 1 is not"):
            finish(Unfinished())
    assert time.monotonic() - start_s < 30


def test_nobody_is_missed_who_left_after_a_common_operation(detectors):
    for detector in detectors[1:]:
        with detector.collective("evaluating", range(3)):
            pass
        detector.announce_exit()
    detectors[0].limits = TimeLimits(60.0, 60.0)
    operation = Unfinished(waits=3)
    with detectors[0].collective("evaluating", range(3)) as finish:
        finish(operation)
    assert operation.is_completed()


@pytest.mark.parametrize("idle", [True, False])
def test_a_wait_for_the_code_of_a_caller_is_told_of(detectors, monkeypatch, idle):
    monkeypatch.setattr(failures, "NOTICE_S", 0.01)
    detectors[2].set_activity("between tick 3 and the next one", slow=True, idle=idle)
    wait_forever(detectors[1], "evaluating", 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with detectors[0].collective("evaluating", range(3)) as finish:
            finish(Unfinished(waits=9))
    told = [str(warning.message) for warning in caught]
    expected = "take part in evaluating; stage 2 is between tick 3 and the next one, and has to"
    assert len(told) == idle
    assert all(expected in text for text in told)


class Unfinished:
    """An operation of gloo that is done, or fails, once so many waits have run out of time."""

    def __init__(self, waits=math.inf, error=None):
        self.waits, self.error = waits, error

    def wait(self, limit):
        if self.waits > 0:
            self.waits -= 1
            time.sleep(limit.total_seconds())
            raise RuntimeError("Operation timed out!")
        if self.error is not None:
            raise self.error

    def is_completed(self):
        return self.waits <= 0


@pytest.mark.parametrize("waits", [0, 1])
def test_an_operation_that_fails_ends_the_wait_with_its_own_error(detectors, waits):
    operation = Unfinished(waits, RuntimeError("connection reset by peer"))
    with (
        pytest.raises(RuntimeError, match="connection reset by peer"),
        detectors[0].waiting_for("waiting", [1], "it") as wait,
    ):
        wait.finish(operation)


def test_a_wait_may_have_a_limit_of_its_own(detectors, monkeypatch):
    """It begins again when the process waited for is started again."""
    now_s = [0.0]
    monkeypatch.setattr(FailureDetector, "running_s", property(lambda detector: now_s[0]))
    with detectors[0].waiting_for("waiting", [1], "anything from stage 1") as wait:
        now_s[0] = 5.0
        wait.restart()
        now_s[0] = 9.0
        wait.look(most_s=5)
        now_s[0] = 11.0
        with pytest.raises(HangError, match="for anything from stage 1; if nothing hangs, inc"):
            wait.look(most_s=5)


def barriers_of(detector):
    identity = ProcessIdentity(detector._rank, len(detector.names), HashStore())
    return Membership(identity, identity.store, detector)


# Without a store.


def test_without_a_store_every_process_reports_what_it_knows():
    store, gone = Mock(), RuntimeError("connection refused")
    for call in (store.check, store.set, store.add, store.compare_set):
        call.side_effect = gone
    detector = FailureDetector(store, NAMES, 0, LIMITS)
    assert type(detector.peer_lost(1, "reset")) is PeerLostError
    assert "stage 1 does not answer" in str(end_of_wait(detector, 1))
    assert detector.record.report(ValueError("the reason"))
    with pytest.raises(HangError, match="build their Trainer; stage 1 does not answer"):
        barriers_of(detector).wait_for_all()
    detector.close()


def test_the_thread_of_a_detector_asks_without_the_client_which_has_one_request_at_a_time():
    store, askers = HashStore(), set()

    def check(keys):
        if keys == [STATUS_REQUEST_KEY]:  # which only that thread looks at
            askers.add(threading.current_thread())
        return store.check(keys)

    noting = SimpleNamespace(set=store.set, get=store.get, check=check)
    detector = FailureDetector(noting, NAMES, 0, LIMITS)
    wait_until(lambda: askers)
    detector.close()
    assert askers == {detector._thread}


class SlowStore:
    """A store whose next answer comes when the test lets it."""

    def __init__(self):
        self.store, self.answers = HashStore(), threading.Event()
        self.answers.set()

    def __getattr__(self, name):
        self.answers.wait()
        return getattr(self.store, name)


@pytest.fixture
def slow(monkeypatch):
    monkeypatch.setattr(store_client, "STORE_TIMEOUT_S", 0.5)
    store = SlowStore()
    yield store
    store.answers.set()


@pytest.fixture
def pair(slow):
    """Detectors of two processes, the first of which has a store that may be slow."""
    silent.clear()
    built = [
        FailureDetector(store, NAMES[:2], rank, LIMITS, is_silent=note_silence)
        for rank, store in enumerate((slow, slow.store))
    ]
    yield built
    for detector in built:
        detector.close()


def test_a_store_that_answers_late_is_asked_again(slow, pair):
    """All that was not told meanwhile is told then."""
    detector, other = pair
    detector.limits = other.limits = TimeLimits(60.0, 3600.0)
    with ThreadPoolExecutor(1) as pool:
        slow.answers.clear()
        waiting = pool.submit(barriers_of(detector).wait_for_all)
        wait_until(lambda: not detector.store.reachable)
        slow.answers.set()
        barriers_of(other).wait_for_all()
        waiting.result()
    assert detector.store.reachable


def test_nobody_is_blamed_for_a_store_that_is_slow_for_a_moment(slow, pair):
    """The other process answers, and the store tells it late."""
    detector, other = pair
    detector.limits = other.limits = TimeLimits(60.0, 3600.0)
    waiting = Status("waiting for stage 1", (1,))
    with other.in_phase(Phase.EVALUATING):
        slow.answers.clear()
        assert detector.examine(waiting, "gradient 3 from stage 1", 60.0) > 0
        slow.answers.set()
        # The store still owes an answer.
        wait_until(lambda: detector.examine(waiting, "gradient 3 from stage 1", 60.0) >= 1)
    assert silent == []


def test_a_consequence_is_not_reported_while_the_store_is_slow(slow, pair):
    """The cause is read as soon as the store answers."""
    detector, other = pair
    slow.answers.clear()
    other.record.report(ValueError("the cause"))
    late = threading.Timer(2 * store_client.STORE_TIMEOUT_S, slow.answers.set)
    late.start()
    assert str(detector.peer_lost(1, "reset")) == "stage 1 failed: ValueError: the cause"
    assert not detector.record.report(ValueError("a consequence"))
    late.join()


def test_a_store_that_does_not_answer_is_given_up(slow, pair, monkeypatch):
    monkeypatch.setattr(first_failure, "RECORD_TIMEOUT_S", 0.1)
    slow.answers.clear()
    assert pair[0].record.report(ValueError("the reason"))
    assert type(pair[0].peer_lost(1, "reset")) is PeerLostError
    slow.answers.set()

"""Who failed first, and who keeps whom waiting, seen from every process."""

import threading
import time
from queue import Empty, Queue

import pytest
from torch.distributed import HashStore

from hocket.distributed import failures as module
from hocket.distributed.failures import FailureDetector
from hocket.errors import HangError, PeerFailedError, PeerLostError

PLACES = ["stage 0", "stage 1", "stage 2"]
TIMEOUT_S = 0.32  # everyone looks 50 times a second whether somebody asks


@pytest.fixture
def alarms():
    """The alarms of three processes; those that are closed do not answer."""
    store = HashStore()
    built = [FailureDetector(store, PLACES, rank, TIMEOUT_S) for rank in range(3)]
    yield built
    for alarm in built:
        alarm.close()


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 0.5)
    monkeypatch.setattr(module, "ANSWER_S", 0.5)


def error(words="the reason", note=""):
    found = ValueError(words)
    if note:
        found.add_note(note)
    return found


def waits(alarm, what, rank):
    """Have a process wait for another one until the test ends."""
    alarm.waiting(what, rank).__enter__()


# Who was first.


def test_the_first_failure_is_what_everyone_ends_with(alarms):
    assert alarms[1].report(error("mine", note="(stage 1, batch 4)"))
    assert not alarms[2].report(error("what followed"))
    for other in (alarms[0], alarms[2]):
        found = other.lost(1, "reset")
        assert type(found) is PeerFailedError
        assert str(found) == "stage 1 failed: ValueError: mine\n(stage 1, batch 4)"


def test_who_was_first_stays_first_however_often_it_reports(alarms):
    assert alarms[1].report(error("mine"))
    assert alarms[1].report(error("mine, with a note"))
    assert str(alarms[0].lost(1, "reset")) == "stage 1 failed: ValueError: mine"


def test_a_witness_reports_nothing(alarms):
    assert not alarms[0].report(PeerFailedError("stage 1 failed"))
    assert type(alarms[2].lost(None, "reset")) is PeerLostError


def test_a_failure_that_is_written_a_little_late_is_waited_for(alarms):
    timer = threading.Timer(0.1, alarms[1].report, [error("late")])
    timer.start()
    assert str(alarms[0].lost(1, "reset")) == "stage 1 failed: ValueError: late"
    timer.join()


def test_whoever_listens_hears_of_a_failure_unasked(alarms):
    heard = Queue()
    for alarm in alarms:
        alarm.listen(heard.put)
    with pytest.raises(Empty):
        heard.get(timeout=2 * TIMEOUT_S / 16)
    alarms[1].report(error("mine"))
    for _ in alarms:
        found = heard.get(timeout=10)
        assert type(found) is PeerFailedError
        assert str(found) == "stage 1 failed: ValueError: mine"


# Who is gone.


def test_who_ends_without_a_word_is_named_with_what_was_going_on(alarms):
    with alarms[0].waiting("waiting for gradient 3 from stage 1", 1):
        found = alarms[0].lost(1, "reset by peer")
    assert type(found) is PeerLostError
    assert str(found).startswith("the connection to stage 1 is gone, and it did not say why")
    assert str(found).endswith("(stage 0 was waiting for gradient 3 from stage 1)")
    assert found.__notes__ == ["(the connection said: reset by peer)"]
    assert str(alarms[2].lost(1, "reset by peer")) == str(found)


def test_where_all_meet_nobody_knows_who_is_gone(alarms):
    assert str(alarms[0].lost(None, "x")).startswith("the connection to another process is")


@pytest.mark.parametrize("rank", [1, None])
def test_who_has_left_in_good_order_was_not_killed(alarms, rank):
    alarms[1].leave()
    with alarms[0].waiting("gathering", None):
        found = str(alarms[0].lost(rank, "x"))
    assert found == (
        "the connection to stage 1 is gone, and it has left in good order; fit, evaluate and "
        "all else that needs every stage must be called in all processes (stage 0 was "
        "gathering)"
    )


# Who hangs.


def test_who_computes_for_too_long_is_named_with_what_it_does(alarms):
    alarms[1].doing("executing F1.4 in tick 5")
    found = alarms[0].silent(1, "gradient 3 from stage 1")
    assert type(found) is HangError
    assert str(found) == (
        "stage 0 waited 0.32 s for gradient 3 from stage 1; stage 1 has been executing F1.4 in "
        "tick 5 for 0 s; if that is no hang, allow more with timeout_s"
    )


def test_the_chain_of_waits_is_followed_to_its_end(alarms):
    waits(alarms[1], "waiting for gradient 5 from stage 2", 2)
    alarms[2].doing("reading a file")
    assert "; stage 2 has been reading a file for" in str(alarms[0].silent(1, "gradient 3"))


def test_at_the_end_of_the_chain_may_be_one_that_does_not_answer(alarms):
    waits(alarms[1], "waiting for gradient 5 from stage 2", 2)
    alarms[2].close()
    found = str(alarms[0].silent(1, "gradient 3"))
    assert "; stage 2 does not answer: it is stopped, or cut off; if that" in found


def test_who_waits_for_itself_in_the_end_names_the_last_before(alarms):
    waits(alarms[1], "waiting for stage 2", 2)
    waits(alarms[2], "waiting for stage 0", 0)
    assert "; stage 2 has been waiting for stage 0 for" in str(alarms[0].silent(1, "gradient"))


def test_a_loop_of_waits_among_others_ends(alarms):
    waits(alarms[1], "waiting for stage 2", 2)
    waits(alarms[2], "waiting for stage 1", 1)
    assert "; stage 2 has been waiting for stage 1 for" in str(alarms[0].silent(1, "gradient"))


def test_two_that_find_a_hang_say_the_same(alarms):
    first = alarms[0].silent(2, "gradient 3")
    second = alarms[1].silent(2, "activation 4")
    assert type(first) is HangError
    assert type(second) is PeerFailedError
    assert str(second) == str(first)


def test_a_failure_that_is_known_is_told_rather_than_a_hang(alarms):
    alarms[2].report(error())
    assert str(alarms[0].silent(2, "x")) == "stage 2 failed: ValueError: the reason"


def test_a_wait_that_is_over_is_forgotten(alarms):
    alarms[1].doing("going on")
    with alarms[1].waiting("waiting for stage 2", 2):
        pass
    assert "; stage 1 has been going on for" in str(alarms[0].silent(1, "gradient 3"))


def test_a_wait_that_ended_in_an_error_is_remembered(alarms):
    with pytest.raises(ValueError, match="inside"), alarms[1].waiting("waiting for 2", 2):
        raise ValueError("inside")
    assert "; stage 2 has been starting for" in str(alarms[0].silent(1, "gradient 3"))


def test_who_has_left_is_not_said_to_be_stopped(alarms):
    alarms[1].leave()
    alarms[1].close()
    found = str(alarms[0].silent(1, "gradient 3"))
    assert "; stage 1 is not there any more, and it has left in good order; fit, " in found


# Where all meet.


def test_who_does_something_else_while_the_others_meet_is_named(alarms):
    waits(alarms[1], "gathering", None)
    alarms[2].doing("executing F2.0 in tick 0")
    found = alarms[0].absent("gathering")
    assert type(found) is HangError
    assert str(found).startswith(
        "stage 0 waited 0.32 s for all to meet; stage 2 has been executing F2.0 in tick 0 for"
    )


def test_who_does_not_answer_is_absent(alarms):
    waits(alarms[1], "gathering", None)
    alarms[2].close()
    assert "all to meet; stage 2 does not answer" in str(alarms[0].absent("gathering"))


def test_where_all_have_come_after_all_somebody_is_named(alarms):
    for alarm in alarms:
        waits(alarm, "gathering", None)
    assert "; stage 1 has been gathering for" in str(alarms[0].absent("gathering"))


# Where all begin.


def aside(alarm):
    """Have a process come to where all begin; what it found, once it is there."""
    found = []

    def meet():
        try:
            alarm.meet()
            found.append("met")
        except (PeerFailedError, HangError) as error:
            found.append(error)

    thread = threading.Thread(target=meet)
    thread.start()
    return thread, found


def test_all_go_on_once_all_have_come(alarms):
    begun = [aside(alarms[0]), aside(alarms[2])]
    time.sleep(0.05)
    assert [found for _, found in begun] == [[], []]
    alarms[1].meet()
    for thread, found in begun:
        thread.join()
        assert found == ["met"]


def test_who_fails_before_it_comes_ends_the_wait_of_all(alarms):
    begun = [aside(alarms[0]), aside(alarms[2])]
    alarms[1].report(error("early"))
    for thread, found in begun:
        thread.join()
        assert type(found[0]) is PeerFailedError
        assert str(found[0]) == "stage 1 failed: ValueError: early"


def test_who_does_not_come_is_named(alarms):
    thread, other = aside(alarms[2])
    with pytest.raises(
        (HangError, PeerFailedError), match=r"stage [02] waited 0.32 s for all to"
    ):
        alarms[0].meet()
    thread.join()
    assert "build their Trainer; stage 1 did not come so far; if that is no" in str(other[0])
    with pytest.raises(PeerFailedError, match="stage 1 did not come"):
        alarms[1].meet()  # too late


# Without a store.


class Gone:
    """A store whose host has died."""

    def check(self, keys):
        raise RuntimeError("connection refused")

    def set(self, key, value):
        raise RuntimeError("connection refused")

    def compare_set(self, key, expected, desired):
        raise RuntimeError("connection refused")


def test_without_a_store_everyone_says_what_it_knows():
    alarm = FailureDetector(Gone(), PLACES, 0, TIMEOUT_S)
    assert type(alarm.peer_lost(1, "reset")) is PeerLostError
    assert type(alarm.peer_timed_out(1, "gradient 3")) is HangError
    assert "stage 1 does not answer" in str(alarm.peers_missing("gathering"))
    assert alarm.report(error())
    with pytest.raises(HangError, match="stage 0, stage 1, stage 2 did not come so far"):
        alarm.wait_for_all()
    alarm.close()

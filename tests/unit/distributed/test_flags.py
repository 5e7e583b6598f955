"""What processes say on the board is seen by all, and no process waits for another."""

import threading

import pytest
from torch.distributed import HashStore

from hocket.distributed import failures
from hocket.distributed.failures import FailureDetector
from hocket.distributed.flags import StoreFlags
from hocket.errors import HangError


@pytest.fixture
def own():
    own = FailureDetector(HashStore(), ["stage 0", "stage 1"], 0, timeout_s=2.5)
    yield own
    own.close()


@pytest.fixture
def boards(own):
    store = HashStore()
    return [StoreFlags(store, own, rank, 2) for rank in range(2)]


def test_all_have_said_something_once_the_last_one_has(boards):
    first, second = boards
    first.say("over", "one")
    assert not first.said("over")
    assert first.words("over") is None
    assert second.said("over", ranks=[0])
    second.say("over", "two")
    assert first.said("over")
    assert first.words("over") == second.words("over") == ["one", "two"]
    assert not first.said("stop")


def test_what_was_said_can_be_taken_back(boards):
    first, second = boards
    for board in boards:
        board.say("over")
    second.unsay("over")
    assert not first.said("over")
    assert first.said("over", ranks=[0])


def test_who_asks_as_often_has_the_same_topic(boards):
    topics = [[board.topic() for _ in range(3)] for board in boards]
    assert topics[0] == topics[1]
    assert len(set(topics[0])) == 3


class Mute:
    """A store that answers only when it is let."""

    def __init__(self):
        self.answers = threading.Event()

    def check(self, keys):
        return self.answers.wait()


def test_a_store_that_gives_no_answer_for_too_long_is_a_hang(own, monkeypatch):
    monkeypatch.setattr(failures, "PATIENCE_S", 0.2)
    mute = Mute()
    board = StoreFlags(mute, own, 0, 2)
    assert [board.all_set("over") for _ in range(2)] == [False, False]
    mute.answers.set()
    assert board.all_set("over")
    mute.answers.clear()
    assert [board.all_set("over") for _ in range(2)] == [False, False]
    with pytest.raises(HangError, match=r"stage 0 waited 2.5 s for an answer of the store thr"):
        board.all_set("over")
    mute.answers.set()

"""What processes say on the board is seen by all, and no process waits for another."""

from torch.distributed import HashStore

from hocket.board import Board


def boards(count):
    store = HashStore()
    return [Board(store, rank, count) for rank in range(count)]


def test_all_have_said_something_once_the_last_one_has():
    first, second = boards(2)
    first.say("over", "one")
    assert not first.said("over")
    assert second.said("over", ranks=[0])
    second.say("over", "two")
    assert first.said("over")
    assert first.words("over") == second.words("over") == ["one", "two"]
    assert not first.said("stop")


def test_what_was_said_can_be_taken_back():
    first, second = boards(2)
    for board in (first, second):
        board.say("over")
    second.unsay("over")
    assert not first.said("over")
    assert first.said("over", ranks=[0])


def test_who_asks_as_often_has_the_same_topic():
    first, second = boards(2)
    topics = [first.topic() for _ in range(3)]
    assert topics == [second.topic() for _ in range(3)]
    assert len(set(topics)) == 3

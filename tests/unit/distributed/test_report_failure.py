"""Of processes that fail at the same time exactly one tells why."""

from types import SimpleNamespace

import pytest
from torch.distributed import HashStore

from hocket.distributed import joined_worlds
from hocket.distributed.failures import FAILURE_KEY
from hocket.distributed.identity import ProcessIdentity
from hocket.errors import PeerFailedError


class Process:
    """A process in worlds, given by the messages that were recorded there before its own."""

    def __init__(self, monkeypatch, rank, store, *worlds):
        self._monkeypatch = monkeypatch
        self._identity = ProcessIdentity(rank, 2, store)
        self._worlds = {
            number: SimpleNamespace(left=False, failures=self._failures(rank, world))
            for number, world in enumerate(worlds, 1)
        }

    @staticmethod
    def _failures(rank, world):
        return SimpleNamespace(report=lambda error: world.setdefault("first", rank) == rank)

    def fails(self):
        """True if this process is to tell why it ends."""
        joined = joined_worlds._Joined(count=1, worlds=self._worlds)
        self._monkeypatch.setattr(joined_worlds, "_joined", joined)
        self._monkeypatch.setattr(joined_worlds, "current_identity", lambda: self._identity)
        return joined_worlds.report_failure(ValueError(f"of rank {self._identity.rank}"))


@pytest.fixture
def store():
    return HashStore()


def next_failure(store):
    return joined_worlds._next_store(SimpleNamespace(store=store)).get(FAILURE_KEY).decode()


def test_the_second_to_fail_does_not_keep_the_first_from_telling(monkeypatch, store):
    """Also if it comes to the store of the next world before the first one does."""
    world = {"first": 0}  # has told its own world, and not the next one yet
    assert not Process(monkeypatch, 1, store, world).fails()
    assert Process(monkeypatch, 0, store, world).fails()
    assert "ValueError: of rank 0" in next_failure(store)


def test_a_failure_of_an_older_world_that_was_caught_hides_no_other(monkeypatch, store):
    caught, world = {"first": 0}, {}
    assert Process(monkeypatch, 1, store, caught, world).fails()
    assert not Process(monkeypatch, 0, store, caught, world).fails()


def test_a_process_without_a_world_tells_those_that_wait_for_it(monkeypatch, store):
    assert Process(monkeypatch, 1, store).fails()
    assert "ValueError: of rank 1" in next_failure(store)
    assert not Process(monkeypatch, 0, store).fails()


def test_a_process_that_saw_the_failure_of_another_one_tells_nothing(monkeypatch, store):
    monkeypatch.setattr(joined_worlds, "current_identity", lambda: None)
    assert not joined_worlds.report_failure(PeerFailedError("stage 1 failed"))

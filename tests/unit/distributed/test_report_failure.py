"""Of processes that fail at the same time exactly one tells why."""

import gc
from types import SimpleNamespace

import pytest
from torch.distributed import HashStore

from hocket.distributed.failures.detector import FailureDetector
from hocket.distributed.failures.first_failure import FAILURE_KEY
from hocket.distributed.folder.identity import ProcessIdentity
from hocket.distributed.world import joined_worlds
from hocket.errors import HangError, PeerFailedError, WorldError


class Process:
    """A process in worlds, given by the rank that has failed first in each.

    Args:
        monkeypatch: Replaces what is known of the process.
        rank: Its rank.
        store: Store of all processes.
        worlds: The worlds that it is in.
        caught: Numbers of those with a failure that it has caught.
    """

    def __init__(self, monkeypatch, rank, store, *worlds, caught=()):
        self._monkeypatch = monkeypatch
        self._identity = ProcessIdentity(rank, 2, store)
        self._joined = joined_worlds._Joined(
            count=1,
            worlds={
                number: SimpleNamespace(
                    left=False, failures=self._failures(rank, world, number in caught)
                )
                for number, world in enumerate(worlds, 1)
            },
        )

    @staticmethod
    def _failures(rank, world, caught):
        record = SimpleNamespace(
            report=lambda error: world.setdefault("first", rank) == rank,
            has_ended=caught,
            has_ended_by=lambda error: False,
        )
        return SimpleNamespace(record=record)

    def enter(self):
        """Let this process be the present one."""
        self._monkeypatch.setattr(joined_worlds, "_joined", self._joined)
        self._monkeypatch.setattr(joined_worlds, "current_identity", lambda: self._identity)

    def fails(self, error=None):
        """True if this process is to tell why it ends."""
        self.enter()
        error = error or ValueError(f"of rank {self._identity.rank}")
        return joined_worlds.report_failure(error)


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


def test_a_failure_that_was_caught_decides_nothing_before_the_next_world(monkeypatch, store):
    caught = {"first": 0}
    assert Process(monkeypatch, 1, store, caught, caught=[1]).fails()
    assert "ValueError: of rank 1" in next_failure(store)
    assert not Process(monkeypatch, 0, store, caught, caught=[1]).fails()


def test_what_follows_from_the_failure_of_another_process_is_no_first_one(monkeypatch, store):
    """Although it may come to the next store before the process with the cause does."""
    world = HashStore()
    seen, own = (FailureDetector(world, ["a", "b"], rank, 60.0) for rank in (1, 0))
    cause, symptom, wrapped = ValueError("cause"), PeerFailedError("a failed"), KeyError("mine")
    wrapped.__context__ = symptom
    assert own.record.report(cause)
    seen.record.report(symptom)
    for rank, detector, error, first in ((1, seen, wrapped, False), (0, own, cause, True)):
        process = Process(monkeypatch, rank, store)
        process._joined.worlds[1] = SimpleNamespace(left=True, failures=detector)
        assert process.fails(error) == first
        detector.close()


def test_a_detector_keeps_no_error():
    """Nor the frames that raised it, which hold all that was trained there."""
    detector, error = FailureDetector(HashStore(), ["a"], 0, 60.0), ValueError("mine")
    detector.record.report(error)
    assert detector.record.has_ended_by(error)
    assert not detector.record.has_ended_by(ValueError("mine"))
    assert not [each for each in gc.get_referrers(error) if each is vars(detector.record)]
    detector.close()


@pytest.mark.parametrize(
    ("error", "first"),
    [(WorldError("2 stages"), True), (HangError("late"), True), (PeerFailedError("1"), False)],
)
def test_a_failure_to_join_is_told_in_the_world_that_others_join(
    monkeypatch, store, error, first
):
    def fail(*_):
        raise error

    monkeypatch.setattr(joined_worlds, "World", fail)
    caught = {"first": 1}
    process = Process(monkeypatch, 0, store, caught)
    process.enter()
    entered = joined_worlds._next_store(process._identity)
    with pytest.raises(type(error)):
        joined_worlds.join_world(2, 1, 60.0, 1800.0)
    assert process.fails(error) == first
    assert entered.check([FAILURE_KEY]) == isinstance(error, WorldError)


def test_a_process_without_a_world_tells_those_that_wait_for_it(monkeypatch, store):
    assert Process(monkeypatch, 1, store).fails()
    assert "ValueError: of rank 1" in next_failure(store)
    assert not Process(monkeypatch, 0, store).fails()

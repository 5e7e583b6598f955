"""All processes see the flags that others set, and no process waits for another."""

import threading
from types import SimpleNamespace

import pytest
from torch.distributed import HashStore

from hocket.distributed.failures import store_client
from hocket.distributed.failures.detector import FailureDetector
from hocket.distributed.world import flags as module
from hocket.distributed.world.flags import StoreFlags
from hocket.errors import HangError


@pytest.fixture
def detector():
    detector = FailureDetector(HashStore(), ["stage 0", "stage 1"], 0, timeout_s=2.5)
    yield detector
    detector.close()


@pytest.fixture
def flags(detector):
    store = HashStore()
    return [StoreFlags(store, rank, 2, detector) for rank in range(2)]


def test_a_flag_is_set_once_all_have_set_it_and_until_one_clears_it(flags):
    first, second = flags
    first.set("over", "one")
    assert not first.all_set("over")
    assert first.values("over") is None
    assert second.all_set("over", ranks=[0])
    second.set("over", "two")
    assert first.all_set("over")
    assert first.values("over") == second.values("over") == ["one", "two"]
    second.clear("over")
    assert not first.all_set("over")
    assert first.all_set("over", ranks=[0])
    second.set("stop", rank=0)  # the flag of another process
    assert first.all_set("stop", ranks=[0])
    assert not first.all_set("stop")


def test_a_store_that_does_not_answer_for_too_long_is_a_hang(detector, monkeypatch):
    monkeypatch.setattr(store_client, "STORE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(module, "STORE_TIMEOUT_S", 1.0)
    answers = threading.Event()  # the store answers only when the test lets it
    flags = StoreFlags(SimpleNamespace(check=lambda keys: answers.wait()), 0, 2, detector)
    assert [flags.all_set("over") for _ in range(2)] == [False, False]
    answers.set()
    assert flags.all_set("over")
    answers.clear()
    assert [flags.all_set("over") for _ in range(2)] == [False, False]
    with pytest.raises(HangError, match=r"stage 0 waited 2 s for an answer of the store th"):
        flags.all_set("over")
    answers.set()

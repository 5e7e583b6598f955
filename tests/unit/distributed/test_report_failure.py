"""Of processes that fail at the same time exactly one tells why."""

import gc
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from torch.distributed import HashStore

from hocket.distributed.failures.detector import FailureDetector
from hocket.distributed.failures.first_failure import FAILURE_KEY
from hocket.distributed.failures.phases import TimeLimits
from hocket.distributed.folder.identity import ProcessIdentity
from hocket.distributed.folder.launch_folder import LaunchFolder, Note
from hocket.distributed.world import joined_worlds
from hocket.errors import HangError, PeerFailedError, WorldError

LIMITS = TimeLimits(60.0, 60.0)


class Process:
    """A process in a world, given by the rank that has failed first there, or in none.

    It may have caught a failure of that world.
    """

    def __init__(self, monkeypatch, rank, store, world=None, *, caught=False):
        self._monkeypatch = monkeypatch
        self._identity = ProcessIdentity(rank, 2, store)
        self._joined = joined_worlds._Joined(count=1, worlds={})
        if world is not None:
            record = SimpleNamespace(
                report=lambda error: world.setdefault("first", rank) == rank,
                has_ended=caught,
                has_ended_by=lambda error: False,
            )
            failures = SimpleNamespace(record=record)
            self._joined.worlds[1] = SimpleNamespace(left=False, failures=failures)

    def enter(self):
        """Let this process be the present one."""
        self._monkeypatch.setattr(joined_worlds, "_joined", self._joined)
        self._monkeypatch.setattr(joined_worlds, "current_identity", lambda: self._identity)

    def fails(self, error=None):
        """True if this process is to tell why it ends."""
        self.enter()
        error = error or ValueError(f"of rank {self._identity.rank}")
        return joined_worlds.report_failure(error)


# The first one has told its own world, and not the next one yet; a failure that was caught
# decides nothing before the next world.
@pytest.mark.parametrize(
    ("world", "caught", "first", "tell"),
    [
        ({"first": 0}, False, 0, [False, True]),
        ({"first": 0}, True, 1, [True, False]),
        (None, False, 1, [True, False]),
    ],
    ids=["the second fails", "caught", "no world"],
)
def test_of_two_that_fail_one_tells_the_next_world(monkeypatch, world, caught, first, tell):
    """Also if the second comes to the store of the next world before the first one does."""
    store = HashStore()
    processes = [Process(monkeypatch, rank, store, world, caught=caught) for rank in (1, 0)]
    assert [process.fails() for process in processes] == tell
    following = joined_worlds._next_store(SimpleNamespace(store=store))
    assert f"ValueError: of rank {first}" in following.get(FAILURE_KEY).decode()


def test_what_follows_from_the_failure_of_another_process_is_no_first_one(monkeypatch):
    """Although it may come to the next store before the process with the cause does."""
    world, store = HashStore(), HashStore()
    seen, own = (FailureDetector(world, ["a", "b"], rank, LIMITS) for rank in (1, 0))
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
    detector, error = FailureDetector(HashStore(), ["a"], 0, LIMITS), ValueError("mine")
    detector.record.report(error)
    assert detector.record.has_ended_by(error)
    assert not detector.record.has_ended_by(ValueError("mine"))
    assert not [each for each in gc.get_referrers(error) if each is vars(detector.record)]
    detector.close()


def test_half_a_character_in_an_error_keeps_nobody_from_learning_of_it(tmp_path):
    store = HashStore()
    first, other = (FailureDetector(store, ["a", "b"], rank, LIMITS) for rank in (0, 1))
    assert first.record.report(ValueError("no word \udcff"))
    assert str(other.peer_lost(0, "reset")) == r"a failed: ValueError: no word \udcff"
    folder = LaunchFolder(tmp_path)
    folder.write(Note.SYMPTOM, text="no word \udcff")
    assert folder.read(Note.SYMPTOM) == r"no word \udcff"
    first.close()
    other.close()


@pytest.mark.parametrize(
    ("error", "first"),
    [(WorldError("2 stages"), True), (HangError("late"), True), (PeerFailedError("1"), False)],
)
def test_a_failure_to_join_is_told_in_the_world_that_others_join(monkeypatch, error, first):
    monkeypatch.setattr(joined_worlds, "World", Mock(side_effect=error))
    caught = {"first": 1}
    process = Process(monkeypatch, 0, HashStore(), caught)
    process.enter()
    entered = joined_worlds._next_store(process._identity)
    with pytest.raises(type(error)):
        joined_worlds.join_world(2, 1, 60.0, 1800.0)
    assert process.fails(error) == first
    assert entered.check([FAILURE_KEY]) == isinstance(error, WorldError)


@pytest.mark.parametrize("broken", [False, True])
def test_a_hook_of_the_user_is_called_for_an_error_that_nobody_catches(monkeypatch, broken):
    """Also after the caller has formed another default group; what it prints is not lost."""
    told, codes, texts = [], [], []

    def form_group():
        torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        torch.distributed.destroy_process_group()

    def hook(kind, error, trace):
        assert sys.stderr is sys.__stderr__
        told.append((kind, error, trace))
        if broken:
            raise KeyError("of the hook")

    monkeypatch.setattr(sys, "excepthook", hook)
    form_group()
    assert sys.excepthook is not hook  # torch has put its own around it
    monkeypatch.setattr(joined_worlds, "exit_process", codes.append)
    monkeypatch.setattr(joined_worlds, "write_last_words", texts.append)
    for name in ("World", "atexit", "threading"):
        monkeypatch.setattr(joined_worlds, name, Mock())
    Process(monkeypatch, 0, HashStore()).enter()
    joined_worlds._joined.count = 0
    joined_worlds.join_world(2, 1, 60.0, 1800.0)
    form_group()
    uncaught = ValueError, ValueError("mine"), None
    sys.excepthook(*uncaught)
    assert (told, codes) == ([uncaught], [1])
    assert len(texts) == broken
    assert all("ValueError: mine" in text and "of the hook" in text for text in texts)


def test_what_two_processes_have_seen_at_the_same_time_is_not_mixed(tmp_path, monkeypatch):
    """Both have opened a file, and the one with less to say writes last."""
    folder, texts = LaunchFolder(tmp_path), ["a long message", "a short one"]
    opened, written = threading.Barrier(2), threading.Event()

    def write(path, text, *_):
        with open(path, "w") as file:
            opened.wait(60)
            if text == texts[1]:
                written.wait(60)
            file.write(text)
        written.set()

    monkeypatch.setattr(Path, "write_text", write)
    monkeypatch.setattr(os, "getpid", threading.get_ident)  # a thread stands for a process
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda text: folder.write(Note.SYMPTOM, text=text), texts))
    assert folder.read(Note.SYMPTOM) in texts


def test_a_signal_that_an_interrupt_names_is_in_the_exit_code():
    errors = KeyboardInterrupt(), KeyboardInterrupt(signal.SIGTERM), KeyboardInterrupt("enough")
    assert list(map(joined_worlds.interrupt_code, errors)) == [130, 143, 130]

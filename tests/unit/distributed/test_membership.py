"""A killed process may rejoin during the elastic phase, and not after it."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.distributed import HashStore, Store

from hocket.distributed.failures.detector import FailureDetector
from hocket.distributed.failures.phases import TimeLimits
from hocket.distributed.folder.identity import ProcessIdentity
from hocket.distributed.folder.launch_folder import LaunchFolder, Note
from hocket.distributed.world import membership as module
from hocket.distributed.world.membership import Membership
from hocket.distributed.world.world import World
from hocket.errors import PeerLostError, WorldError

NAMES = ["stage 0", "stage 1"]
LIMITS = TimeLimits(60.0, 60.0)


def build_membership(store, rank, incarnation=0, folder=None):
    """Build the membership of one of two processes, the one of a rank."""
    detector = FailureDetector(store, NAMES, rank, LIMITS)
    identity = ProcessIdentity(rank, 2, store, incarnation, folder)
    try:
        return Membership(identity, store, detector)
    finally:
        detector.close()


def test_a_process_that_is_killed_while_all_are_detached_may_rejoin(tmp_path):
    store, folder = HashStore(), LaunchFolder(tmp_path)
    first, second = (build_membership(store, rank, 0, folder) for rank in (0, 1))
    assert not first.may_rejoin  # not detached yet
    first.detach(again=False)
    assert not folder.all_detached(2)
    second.detach(again=False)
    assert first.may_rejoin
    assert folder.all_detached(2)
    build_membership(store, 1, 1, folder)
    assert first.incarnation(1) == 1
    folder.write(Note.UNRECOVERABLE)
    assert not first.may_rejoin


def test_processes_are_not_detached_any_more_after_they_have_reunited(tmp_path):
    store, folder = HashStore(), LaunchFolder(tmp_path)
    pair = [build_membership(store, rank, 0, folder) for rank in (0, 1)]
    for each in pair:
        each.detach(again=False)
    store.set("arrived/end of elastic phase 1/1", "yes")
    assert folder.all_detached(2)  # the first one has not arrived yet
    assert pair[0].reunite(timeout_s=60.0) is None
    assert not folder.all_detached(2)


def test_there_is_no_new_group_without_a_process_that_has_rejoined():
    store = HashStore()
    first = build_membership(store, 0)
    first.detach(again=False)
    assert first.pair_group(1) is None
    store.set("incarnation/1", "1")
    assert first.pair_group(1) is None  # the other one is not ready


def test_a_later_phase_ends_in_the_group_of_the_first(monkeypatch):
    """The addresses of the first group are still in the store."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    store = HashStore()
    pair = [build_membership(store, 0), build_membership(store, 1, incarnation=1)]
    groups = []
    with ThreadPoolExecutor(2) as pool:
        for _ in range(2):
            for each in pair:
                each.detach(again=True)
            groups.append(list(pool.map(lambda each: each.reunite(60.0), pair)))
    assert None not in groups[0]
    assert groups[1] == [None, None]


class KilledStore(Store):
    """A store to which a process can still write, and is killed before it reads."""

    def __init__(self, store):
        super().__init__()
        self.store = store

    def set(self, key, value):
        self.store.set(key, value)

    def get(self, key):
        raise RuntimeError("killed")

    def wait(self, keys, timeout):
        raise RuntimeError("killed")


def test_a_process_that_is_killed_while_it_connects_is_not_waited_for(monkeypatch):
    """Its address is in the store, but no process is there any more."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(module, "PAIR_TIMEOUT_S", 0.2)
    store = HashStore()
    store.set("incarnation/1", "1")
    store.set("pair/0-1/0-1/1", "0")
    first, second = build_membership(store, 0), build_membership(KilledStore(store), 1)
    with pytest.raises(RuntimeError, match="killed"):
        second._group("pair/0-1/0-1/try 0", 1, 2, 0.2)
    with pytest.raises(RuntimeError, match="connectFullMesh failed"):
        first.pair_group(1)
    assert first.pair_group(1) is None


def test_two_processes_try_again_if_one_was_too_slow_or_their_group_is_lost(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(module, "PAIR_TIMEOUT_S", 0.2)
    store = HashStore()
    store.set("incarnation/1", "1")
    pair = [build_membership(store, rank) for rank in (0, 1)]
    store.set("pair/0-1/0-1/1", "0")  # it is ready, and is stopped then
    with pytest.raises(RuntimeError, match=r"[Tt]ime"):
        pair[0].pair_group(1)
    monkeypatch.setattr(module, "PAIR_TIMEOUT_S", 60.0)
    assert pair[1].pair_group(0) is None  # it does not wait for one that has given up

    def connect(rank):
        while (group := pair[rank].pair_group(1 - rank)) is None:
            time.sleep(0.01)
        sent = torch.tensor([7.0 if rank == 0 else 0.0])
        (group.send if rank == 0 else group.recv)([sent], 1 - rank, 0).wait()
        return sent.item()

    with ThreadPoolExecutor(2) as pool:
        for _ in range(2):
            assert list(pool.map(connect, (0, 1))) == [7.0, 7.0]
    assert store.get("pair/0-1/0-1/0") == store.get("pair/0-1/0-1/1") == b"2"


def test_a_process_that_rejoins_after_the_end_of_the_phase_is_too_late_and_keeps_no_thread():
    store, threads = HashStore(), threading.enumerate()
    for rank in (0, 1):
        build_membership(store, rank).detach(again=False)
        store.set(f"arrived/end of elastic phase 1/{rank}", "yes")
    with pytest.raises(PeerLostError, match="stage 1 was started again alone, but all stages"):
        World(2, 1, LIMITS, store, ProcessIdentity(1, 2, store, incarnation=1))
    assert b"stage 1 failed" in store.get("failure")
    assert set(threading.enumerate()) <= set(threads)


def test_until_it_reunites_its_collectives_are_its_own_and_it_begins_nothing_anew():
    store = HashStore()
    world = World(2, 1, LIMITS, store, ProcessIdentity(1, 2, store, incarnation=1))
    assert world.rejoined
    assert world.gather("mine") == ["mine"]
    assert world.broadcast("mine") == "mine"
    assert world.clock_offset() == 0.0
    layer = nn.Linear(1, 1)
    before = layer.weight.clone()
    world.copy_weights(layer, source=0)
    assert torch.equal(layer.weight, before)
    with pytest.raises(WorldError, match=r"stage 1 has no process groups .* started again"):
        _ = world.groups
    with pytest.raises(WorldError, match=r"stage 1 was started again alone.*call resume"):
        world.membership.detach(again=False)
    world.close()

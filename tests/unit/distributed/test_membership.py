"""Who may come back, and when it is too late for that."""

import pytest
from torch.distributed import HashStore, Store

from hocket.distributed import membership as module
from hocket.distributed.failures import FailureDetector
from hocket.distributed.identity import ProcessIdentity
from hocket.distributed.membership import Membership
from hocket.distributed.rejoin_files import RejoinMarkers
from hocket.errors import PeerLostError

PLACES = ["stage 0", "stage 1"]


def outing(store, rank, life=0, whereabouts=None):
    alarm = FailureDetector(store, PLACES, rank, timeout_s=20.0)
    try:
        return Membership(
            ProcessIdentity(rank, 2, store, life, whereabouts), store, alarm, PLACES[rank]
        )
    finally:
        alarm.close()


def test_one_that_is_killed_while_all_are_out_is_expected_back(tmp_path):
    store, where = HashStore(), RejoinMarkers(str(tmp_path), 2)
    first, second = outing(store, 0, 0, where), outing(store, 1, 0, where)
    assert not first.may_rejoin  # not out yet
    first.detach()
    assert not where.all_detached
    second.detach()
    assert first.may_rejoin
    assert where.all_detached
    outing(store, 1, 1, where)
    assert first.incarnation(1) == 1
    where.mark_unrecoverable()
    assert not first.may_rejoin


def test_nobody_is_expected_back_where_nobody_is_started_again_alone():
    strict = outing(HashStore(), 0)
    strict.detach()
    assert not strict.may_rejoin


def test_nobody_comes_back_where_the_folder_is_gone(tmp_path):
    where = RejoinMarkers(str(tmp_path / "away"), 2)
    assert where.unrecoverable
    where.mark_unrecoverable()
    assert not where.all_detached


def test_once_all_have_met_they_are_not_apart_any_more(tmp_path):
    store, where = HashStore(), RejoinMarkers(str(tmp_path), 2)
    pair = [outing(store, rank, 0, where) for rank in (0, 1)]
    for each in pair:
        each.detach()
    store.set("here/after outing 1/1", "yes")
    assert where.all_detached  # the first one is not there yet
    assert pair[0].reunite(timeout_s=20.0) is None
    assert not where.all_detached


def test_without_anybody_new_there_is_no_new_group():
    store = HashStore()
    first = outing(store, 0)
    first.detach()
    assert first.pair_group(1) is None
    store.set("life/1", "1")
    assert first.pair_group(1) is None  # it has not said that it is ready


class Killed(Store):
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


def test_one_that_is_killed_while_it_connects_is_not_waited_for(monkeypatch):
    """Its address is there, and nobody at it any more."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(module, "PAIR_S", 0.2)
    store = HashStore()
    store.set("life/1", "1")
    store.set("pair/0-1/0-1/1", "ready")
    first, second = outing(store, 0), outing(Killed(store), 1)
    with pytest.raises(RuntimeError, match="killed"):
        second._group("pair/0-1/0-1", 1, 2, 0.2)
    with pytest.raises(RuntimeError, match="connectFullMesh failed"):
        first.pair_group(1)
    assert first.pair_group(1) is None


def test_one_that_comes_back_after_the_others_have_met_is_too_late():
    store = HashStore()
    for rank in (0, 1):
        outing(store, rank).detach()
        store.set(f"here/after outing 1/{rank}", "yes")
    with pytest.raises(PeerLostError, match="stage 1 was started again alone, but all had met"):
        outing(store, 1, life=1)
    assert b"stage 1 failed" in store.get("failure")

"""Processes know their stage and replica, and have the same values after a collective."""

import contextlib
import threading
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from torch import distributed, nn
from torch.distributed import HashStore, PrefixStore
from torch.distributed.distributed_c10d import _get_default_store

from contract.processes import in_processes
from contract.test_closing import least_counts
from hocket.distributed.failures import store_client
from hocket.distributed.failures.detector import FailureDetector
from hocket.distributed.failures.phases import TimeLimits
from hocket.distributed.folder.identity import ProcessIdentity
from hocket.distributed.replicas.gradient_sync import sync_replicas
from hocket.distributed.world import flags as module
from hocket.distributed.world import joined_worlds
from hocket.distributed.world.flags import StoreFlags
from hocket.distributed.world.solo_world import SoloWorld
from hocket.distributed.world.world import World
from hocket.errors import HangError, WorldError


def build_world(name, stages, replicas=1):
    """Build a world of this process, whose name gives it a store of its own."""
    store = PrefixStore(name, _get_default_store())
    identity = ProcessIdentity(distributed.get_rank(), distributed.get_world_size(), store)
    return World(stages, replicas, TimeLimits(20.0, 1800.0), store, identity)


def refusal(call, *arguments):
    """Return the message with which a call is refused."""
    try:
        call(*arguments)
    except WorldError as error:
        return str(error)


def run_four_processes():
    """Use everything in a world of two stages with two replicas."""
    rank = distributed.get_rank()
    results = {
        "too many": refusal(build_world, "too many", 1),
        "too few": refusal(build_world, "too few", 3),
        "too few for replicas": refusal(build_world, "too few for replicas", 3, 2),
    }
    world = build_world("four", 2, 2)
    results["place"] = [world.stage, world.replica, world.name, world.is_main]
    results["names"] = world.names
    results["process"] = [world.process_name, world.reads_data, list(world.local_stages(2))]
    results["neighbours"] = [world.neighbour(1), world.neighbour(-1)]
    value = {"rank": rank, "text": "é" * 1000 * rank, "none": None}
    with torch.device("meta"):  # whatever the default
        results["gather"], results["clock offset"] = world.gather(value), world.clock_offset()
    activity = "evaluating" if rank == 1 else "training"
    results["different"] = refusal(world.gather, rank, activity)
    results["synced"] = sync_weights(world)
    results["strides"] = copy_other_strides(world)
    results["bank"] = copy_bank(world)

    link = Link()
    world.add_link(link)
    world.close()
    world.close()
    results["link"] = link.calls
    results["threads"] = count_threads()
    return results


class Link:
    """A connection that notes how it is closed."""

    def __init__(self, quiet=True):
        self.quiet = quiet
        self.calls = []

    def begin_close(self):
        self.calls.append("begin")

    def finish_close(self, timeout_s):
        self.calls.append("finish" if 0 < timeout_s <= 20 else f"finish within {timeout_s}")
        return self.quiet


def count_threads():
    """Close worlds in various ways; return how many threads there are in the next one."""
    counts = {}

    def close(name, change=lambda world: None):
        world = build_world(f"before {name}", 2, 2)
        change(world)
        world.close()
        del world
        world = build_world(name, 2, 2)
        counts[name], _ = least_counts()
        world.close()

    def miss_a_packet(world):
        if world.rank == 3:
            world.add_link(Link(quiet=False))

    def break_off(world):
        if world.rank == 1:
            with contextlib.suppress(ValueError), world.collective("nothing"):
                raise ValueError

    close("good order")
    close("good order again")
    close("missed packet", miss_a_packet)
    close("broken operation", break_off)
    return counts


def sync_weights(world):
    """Sync weights and statistics, some of them with gaps, and return their values."""
    network = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    network[1].register_buffer("unsaved", torch.zeros(2), persistent=False)
    gaps = nn.Parameter(torch.zeros(4, 2)[:, ::2])
    network[0].register_parameter("gaps", gaps)
    with torch.no_grad():
        for value in (*network.parameters(), *network.buffers()):
            value.fill_(world.rank)
    sync_replicas(world, [network])
    values = (*network.parameters(), *network.buffers())
    return sorted({float(v) for t in values for v in t.flatten()})


def copy_other_strides(world):
    """Copy the weights of a convolution that each process keeps in another memory format."""
    layer, last = nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 3)
    formats = [torch.contiguous_format, torch.channels_last]
    found = []
    for kept, copy in (
        (layer, lambda: sync_replicas(world, [layer])),
        (last, lambda: world.copy_weights(last, source=1)),
    ):
        kept.to(memory_format=formats[world.rank % 2])
        torch.manual_seed(world.rank)
        nn.init.normal_(kept.weight.data)
        copy()
        found.append(kept.weight.tolist())
    return found


def copy_bank(world):
    """Copy a buffer that each process has replaced by one of another size."""
    layer = nn.Module()
    layer.register_buffer("bank", torch.full((world.rank,), world.rank), persistent=False)
    world.copy_weights(layer, source=2)
    return layer.bank.tolist()


pytestmark = pytest.mark.xdist_group("world_worker")


@cache
def all_results():
    """Run four processes, two stages with two replicas, and return their results."""
    return in_processes(run_four_processes, processes=4)


def by_rank(name):
    return [results[name] for results in all_results()]


def test_replicas_of_a_stage_have_adjacent_ranks():
    assert by_rank("place") == [
        [0, 0, "stage 0, replica 0", True],
        [0, 1, "stage 0, replica 1", False],
        [1, 0, "stage 1, replica 0", False],
        [1, 1, "stage 1, replica 1", False],
    ]
    assert by_rank("names") == [[name for _, _, name, _ in by_rank("place")]] * 4
    assert by_rank("process") == [
        ["stage0-replica0", True, [(0, 0)]],
        ["stage0-replica1", True, [(0, 1)]],
        ["stage1-replica0", False, [(1, 0)]],
        ["stage1-replica1", False, [(1, 1)]],
    ]
    assert by_rank("neighbours") == [[2, -2], [3, -1], [4, 0], [5, 1]]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("too many", "there are 4 processes, but 1 stage needs 1; start that many, or choose"),
        ("too few", "there are 4 processes, but 3 stages need 3; start that many, or choose"),
        ("too few for replicas", "there are 4 processes, but 3 stages x 2 replicas need 6; st"),
    ],
)
def test_a_world_that_does_not_fit_is_refused_by_all(name, message):
    for text in by_rank(name):
        assert text.startswith(message)


def test_collectives_give_the_same_values_to_all_and_none_to_those_that_do_something_else():
    values = [{"rank": rank, "text": "é" * 1000 * rank, "none": None} for rank in range(4)]
    assert by_rank("gather") == [values] * 4
    assert by_rank("synced") == [[0.0], [0.0], [2.0], [2.0]]  # the first of each stage
    doing = "rank 0 is training, rank 1 is evaluating, rank 2 is training, rank 3 is training"
    for said in by_rank("different"):
        assert f"do different things at the same time: {doing}; call resume" in said


def test_weights_are_copied_to_other_strides():
    """Those of the first replica to the others of its stage, and those of one rank to all."""
    of_stages, of_all = zip(*(each["strides"] for each in all_results()), strict=True)
    assert of_stages[0] == of_stages[1] != of_stages[2] == of_stages[3]
    assert of_all == of_all[:1] * 4


def test_a_buffer_of_any_size_is_copied_also_if_no_state_dict_has_it():
    assert by_rank("bank") == [[2, 2]] * 4


def test_on_one_machine_all_clocks_are_nearly_the_same():
    first, *others = by_rank("clock offset")
    assert first == 0
    assert max(map(abs, others)) < 0.5  # half of the quickest exchange, on a busy machine


def test_a_world_closes_its_connections_once_and_its_threads_end_with_the_next_one():
    """If it was left in good order."""
    assert by_rank("link") == [["begin", "finish"]] * 4
    for rank, counts in enumerate(by_rank("threads")):
        assert counts["good order"] == counts["good order again"]
        assert (counts["missed packet"] > counts["good order"]) == (rank == 3)
        assert (counts["broken operation"] > counts["missed packet"]) == (rank == 1)


def test_a_process_without_others_has_a_solo_world(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert type(joined_worlds.join_world(2, 1, 60.0, 1800.0)) is SoloWorld
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert type(joined_worlds.join_world(2, 1, 60.0, 1800.0)) is SoloWorld
    assert joined_worlds.is_main()


# Flags that others set are seen by all, and no process waits for another.


@pytest.fixture
def detector():
    detector = FailureDetector(HashStore(), ["stage 0", "stage 1"], 0, TimeLimits(2.5, 60.0))
    yield detector
    detector.close()


def test_a_flag_is_set_once_all_have_set_it_and_until_one_clears_it(detector):
    store = HashStore()
    first, second = (StoreFlags(store, rank, 2, detector) for rank in range(2))
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
    monkeypatch.setattr(module, "STORE_TIMEOUT_S", 1.0)
    answers = threading.Event()  # the store answers only when the test lets it
    flags = StoreFlags(SimpleNamespace(check=lambda keys: answers.wait()), 0, 2, detector)
    with monkeypatch.context() as patch:
        patch.setattr(store_client, "STORE_TIMEOUT_S", 0.2)
        assert [flags.all_set("over") for _ in range(2)] == [False, False]
    answers.set()
    assert flags.all_set("over")
    answers.clear()
    monkeypatch.setattr(store_client, "STORE_TIMEOUT_S", 0.2)
    assert [flags.all_set("over") for _ in range(2)] == [False, False]
    with pytest.raises(HangError, match=r"stage 0 waited 2 s for an answer of the store th"):
        flags.values("over")
    answers.set()

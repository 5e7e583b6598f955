"""Every relay: packets arrive unchanged, by number, exactly once."""

import json
import re
import tempfile
from functools import cache
from pathlib import Path

import pytest

from contract import ports
from contract.ports import activation, gradient, said
from hocket.distributed.launch import launch
from hocket.transport.connection import IN_FLIGHT

pytestmark = pytest.mark.xdist_group("ports")


@cache
def apart():
    """What the ends found in processes of their own, by rank."""
    with tempfile.TemporaryDirectory() as folder:
        assert launch(ports.in_a_process, folder, processes=2, threads=1) == 0
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in (0, 1)]


def found(relay):
    return ports.in_memory() if relay == "memory" else apart()[0] | apart()[1]


@pytest.fixture(params=["memory", "p2p"])
def relay(request):
    return request.param


@pytest.mark.parametrize(
    ("step", "packet", "batches"),
    [
        ("in order", activation, (0, 1, 2)),
        ("gradients in another order", gradient, (2, 0, 1)),
        ("in another order", activation, (5, 3, 4)),
        ("afterwards", activation, (9, 6, 7, 8)),
        ("the last gradients", gradient, (3,)),
    ],
)
def test_packets_are_taken_by_number_with_all_they_say(relay, step, packet, batches):
    assert found(relay)[step] == [said(packet(batch)) for batch in batches]


def test_a_packet_is_taken_once(relay):
    text = found(relay)["once only"]
    assert "3 was expected" in text
    assert re.search("(in its place came activation|waiting are) 6", text)
    assert "stage 0" in text
    assert "stage 1" in text


def test_a_doubled_packet_is_refused_where_it_arrives():
    start = "stage 1, from stage 0: activation 3 arrived twice; go on from the last checkpoint"
    assert apart()[1]["doubled"].startswith(start)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (
            "damaged",
            r"activation 1 was damaged on its way: the checksum of its tensor 2 \(torch.int64, "
            r"\[1\]\) is [0-9a-f]{8}, and was [0-9a-f]{8}",
        ),
        ("damaged header", "after activation 0: a packet arrived with a damaged header: its"),
        ("damaged length", "after activation 0: a packet arrived with a damaged header: its"),
        (
            "lost",
            "activation 2 came as packet 2, and packet 1 was to come after activation 0: what "
            "was before it is lost",
        ),
        (
            "sent again",
            "activation 1 came as packet 1, and packet 2 was to come after activation 1: it "
            "came again, or late",
        ),
        (
            "under a later number",
            "activation (1 was expected; in its place came activation 2|2 arrived twice)",
        ),
        ("under an earlier number", "activation 0 arrived twice"),
    ],
)
def test_a_packet_that_went_wrong_is_named_where_it_arrives(wrong, told):
    said = apart()[1][wrong]
    assert re.match(f"stage 1, from stage 0[:,] {told}", said), said


def test_without_checksums_damaged_tensors_are_taken():
    """Else the test before would be of something else."""
    assert apart()[1]["damaged unseen"] is None


def test_what_one_has_sent_the_other_has_received():
    upper, lower = apart()
    assert upper["sent"] == lower["received"] > 10 * 2 * 3 * 4 * 5 * 4
    assert lower["sent"] == upper["received"] > 4 * 6 * 4


def test_a_sender_runs_ahead_by_as_much_as_there_is_room_for():
    """What has arrived, one that the receiving thread holds, and those in flight."""
    upper, _ = apart()
    room = 2
    assert upper["flooded"] == room + 1 + IN_FLIGHT
    assert upper["hang"].startswith(
        "stage 0 waited 1 s for stage 1 to take activation 5; stage 1 "
    )

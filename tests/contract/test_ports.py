"""Every transport: packets arrive unchanged, by number, exactly once."""

import re

import pytest

from contract.ports import (
    CONNECTIONS,
    activation,
    contents,
    gradient,
    in_memory,
    in_two_processes,
)
from hocket.transport.processes.connection import IN_FLIGHT

pytestmark = pytest.mark.xdist_group("ports")


@pytest.fixture(params=["memory", *CONNECTIONS])
def results(request):
    """Return the result of each step, at whichever end."""
    if request.param == "memory":
        return in_memory()
    first, second = in_two_processes(request.param)
    return first | second


@pytest.fixture(params=CONNECTIONS)
def ends(request):
    """Return the results of each of two processes."""
    return in_two_processes(request.param)


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
def test_packets_are_received_by_number_with_all_they_hold(results, step, packet, batches):
    assert results[step] == [contents(packet(batch)) for batch in batches]


def test_a_packet_is_received_once(results):
    text = results["once only"]
    assert "3 was expected" in text
    assert re.search("(in its place came activation|waiting are) 6", text)
    assert "stage 0" in text
    assert "stage 1" in text


def test_a_repeated_packet_is_refused_by_the_receiver(ends):
    start = "stage 1, from stage 0: activation 3 arrived twice; resume from the last checkpoint"
    assert ends[1]["repeated"].startswith(start)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("damaged", r"activation 1 was damaged .*: tensor 2 \(torch.int64, .* checksum"),
        ("damaged header", "after activation 0: a packet arrived with a damaged header: its"),
        ("damaged length", "after activation 0: a packet arrived with a damaged header: its"),
        ("lost", "activation 2 arrived as packet 2, but packet 1 .*: packets .* were lost"),
        ("sent again", "activation 1 arrived as packet 1, but packet 2 .*: it was repeated"),
        ("under a later number", "activation (1 .*; in its place came .* 2|2 arrived twice)"),
        ("under an earlier number", "activation 0 arrived twice"),
    ],
)
def test_a_packet_changed_in_transit_is_named_by_the_receiver(ends, change, message):
    error = ends[1][change]
    assert re.match(f"stage 1, from stage 0[:,] {message}", error), error


def test_without_checksums_damaged_tensors_are_accepted(ends):
    """Otherwise the test above would not be one of checksums."""
    assert ends[1]["damaged without checksums"] is None


def test_both_ends_close_in_good_order_and_count_what_they_have_sent(ends):
    first, second = ends
    assert first["quiet"]
    assert second["quiet"]
    assert first["sent"] > 10 * 2 * 3 * 4 * 5 * 4
    assert second["sent"] > 4 * 6 * 4


def test_a_sender_runs_ahead_until_the_inbox_is_full(ends):
    """It sends the capacity, one that the receiving thread holds, and those in flight."""
    first, _ = ends
    capacity = 2
    assert first["flooded"] == capacity + 1 + IN_FLIGHT
    expected = r"stage 0 waited \d+ s for stage 1 to take activation 5; stage 1 has been "
    assert re.match(expected, first["hang"])

"""Tensors through shared memory: unchanged, in few blocks, and only where both can map it."""

import os
import resource
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hocket.distributed import wire
from hocket.errors import PacketError, TransitError
from hocket.transport.processes import shared_memory
from hocket.transport.processes.backend import Lane
from hocket.transport.processes.shared_memory import (
    LEAST_BYTES,
    SharedMemoryBackend,
    offer_memory,
    reaches,
)
from unit.transport.lanes import Lanes

LARGE = LEAST_BYTES // 4
SIZES = st.sampled_from([1, 1000, LARGE - 1, LARGE, 3 * LARGE])
DTYPES = st.sampled_from([torch.float32, torch.float64])


def build():
    """Return a backend that sends to itself, and the backend of its notes."""
    host = Lanes()
    return SharedMemoryBackend(host, os.getpid()), host


def transfer(backend, *tensors):
    """Post, send and receive tensors in order."""
    arrivals = [backend.post(wire.tensor_spec(tensor), Lane.EXPECTED) for tensor in tensors]
    for tensor in tensors:
        backend.wait(backend.send(tensor, Lane.EXPECTED))
    return [arrive() for arrive in arrivals]


def mapped_blocks():
    return Path("/proc/self/maps").read_text().count("memfd:hocket")


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


@given(st.lists(st.tuples(SIZES, DTYPES), max_size=6))
def test_tensors_arrive_unchanged(kinds):
    backend, _ = build()
    tensors = [torch.randn(2, size, dtype=dtype).t() for size, dtype in kinds]
    for sent, received in zip(tensors, transfer(backend, *tensors), strict=True):
        assert torch.equal(sent, received)
        assert sent.stride() == received.stride()
        assert sent.dtype == received.dtype


def test_a_tensor_may_change_as_soon_as_it_is_sent():
    backend, _ = build()
    tensor = torch.ones(LARGE)
    arrive = backend.post(wire.tensor_spec(tensor), Lane.EXPECTED)
    backend.send(tensor, Lane.EXPECTED)
    tensor.zero_()
    assert torch.equal(arrive(), torch.ones(LARGE))


def test_there_are_as_many_blocks_as_tensors_on_their_way():
    backend, host = build()
    for count in (1, 3, 2, 3):
        transfer(backend, *[torch.full((LARGE,), float(n)) for n in range(count)])
    files = [int(note[0]) for note in host.waited]
    first, second, third = files[0], files[2], files[3]
    assert len({first, second, third}) == 3
    assert files == [first, first, second, third, first, second, first, second, third]


def test_a_tensor_takes_a_free_block_in_which_it_fits():
    backend, host = build()
    for size in (LARGE, 5 * LARGE, LARGE, 3 * LARGE):
        (received,) = transfer(backend, torch.full((size,), 2.0))
        assert torch.equal(received, torch.full((size,), 2.0))
    capacities = [note[1].item() // LEAST_BYTES for note in host.waited]
    assert capacities == [1, 8, 1, 8]


def test_a_block_that_is_too_small_for_its_tensor_is_refused():
    backend, host = build()
    transfer(backend, torch.ones(LARGE))
    arrive = backend.post(["float32", [4 * LARGE], [1]], Lane.EXPECTED)
    host.send(host.waited[-1], Lane.EXPECTED)
    with pytest.raises(TransitError, match="a tensor of 262144 bytes is said to be in 65536"):
        arrive()


def test_a_block_of_a_process_that_has_ended_is_an_error_of_the_connection():
    """Connections take a RuntimeError for a lost neighbour."""
    host = Lanes()
    backend = SharedMemoryBackend(host, process=2**22)
    arrive = backend.post(["float32", [LARGE], [1]], Lane.EXPECTED)
    host.send(torch.tensor([3, LEAST_BYTES]), Lane.EXPECTED)
    with pytest.raises(RuntimeError, match="No such file"):
        arrive()


def test_a_block_that_an_evaluation_makes_serves_a_training():
    backend, _ = build()
    with torch.inference_mode():
        transfer(backend, torch.ones(LARGE))
    (received,) = transfer(backend, torch.zeros(LARGE))
    assert not received.is_inference()
    with torch.inference_mode():
        transfer(backend, torch.ones(5 * LARGE))
    assert not transfer(backend, torch.zeros(5 * LARGE))[0].any()


LIMITS = {
    "files": (resource.RLIMIT_NOFILE, 3),
    "length of files": (resource.RLIMIT_FSIZE, 2 * LEAST_BYTES),
    "memory": (resource.RLIMIT_AS, 0),
}


@contextmanager
def limited(kind):
    number, limit = LIMITS[kind]
    before = resource.getrlimit(number)
    resource.setrlimit(number, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(number, before)


@pytest.mark.parametrize("kind", LIMITS)
def test_a_tensor_for_which_no_block_can_be_had_goes_through_the_host(kind):
    """Between others in blocks, and in order."""
    backend, _ = build()
    transfer(backend, torch.ones(LARGE))
    sizes = LARGE, 5 * LARGE, LARGE
    tensors = [torch.full((size,), float(n)) for n, size in enumerate(sizes)]
    arrivals = [backend.post(wire.tensor_spec(tensor), Lane.EXPECTED) for tensor in tensors]
    backend.send(tensors[0], Lane.EXPECTED)
    with limited(kind), pytest.warns(match=f"for {20 * LARGE} bytes .* through a socket"):
        handle = backend.send(tensors[1], Lane.EXPECTED)
    backend.wait(handle)
    backend.send(tensors[2], Lane.EXPECTED)
    for sent, arrive in zip(tensors, arrivals, strict=True):
        assert torch.equal(arrive(), sent)
    (again,) = transfer(backend, torch.full((5 * LARGE,), 7.0))
    assert (again == 7).all()


def test_a_receiver_that_may_map_no_more_memory_says_so():
    backend, _ = build()
    arrive = backend.post(["float32", [LARGE], [1]], Lane.EXPECTED)
    backend.send(torch.ones(LARGE), Lane.EXPECTED)
    words = rf"{LEAST_BYTES} bytes .*ulimit -v"
    with limited("memory"), pytest.raises(PacketError, match=words):
        arrive()


def test_a_closed_backend_has_no_files_and_no_memory():
    backend, _ = build()
    transfer(backend, torch.ones(LARGE))
    backend.send(torch.ones(LARGE), Lane.EXPECTED)
    files, mapped = open_files(), mapped_blocks()
    backend.close(timeout_s=0.01)  # nobody takes the second tensor
    assert open_files() == files - 1
    assert mapped_blocks() == mapped - 2


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, 2**22), (1, "net:[1]"), (2, 10**6), (3, "00" * 16)],
    ids=["process", "network", "file", "nonce"],
)
def test_a_process_reaches_its_own_memory_and_no_other_address(place, value, monkeypatch):
    monkeypatch.setattr(shared_memory.platform, "machine", lambda: "x86_64")
    address = offer_memory()
    other = list(address)
    assert reaches(address, other)
    other[place] = value
    assert not reaches(address, other)
    assert not reaches(address, None)
    assert not reaches(None, address)
    os.close(address[2])


@pytest.mark.parametrize("error", [AttributeError, PermissionError])
def test_a_system_without_such_memory_offers_none(monkeypatch, error):
    monkeypatch.setattr(os, "memfd_create", Mock(side_effect=error))
    assert offer_memory() is None


def test_a_processor_that_reorders_reads_and_writes_shares_no_memory(monkeypatch):
    monkeypatch.setattr(shared_memory.platform, "machine", lambda: "aarch64")
    assert offer_memory() is None


def test_a_system_without_namespaces_has_one_network(monkeypatch):
    monkeypatch.setattr(shared_memory.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(Path, "readlink", Mock(side_effect=OSError))
    first, second = offer_memory(), offer_memory()
    assert first[1] == ""
    assert reaches(first, second)
    for found in (first, second):
        os.close(found[2])


def test_a_backend_closes_once_the_neighbour_has_taken_all():
    backend, _ = build()
    arrive = backend.post(["float32", [LARGE], [1]], Lane.EXPECTED)
    backend.send(torch.ones(LARGE), Lane.EXPECTED)
    with ThreadPoolExecutor() as pool:
        closing = pool.submit(backend.close, 60.0)
        with pytest.raises(TimeoutError):
            closing.result(timeout=0.1)
        assert arrive().all()
        closing.result(timeout=60)

"""Parameters are gathered in buckets of one dtype each, the last ones first."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from hocket.distributed.replicas import gradient_sync
from hocket.distributed.replicas.gradient_sync import GradientSync, build_buckets


def parameters(*sizes, dtype=torch.float32):
    return [nn.Parameter(torch.zeros(size, dtype=dtype)) for size in sizes]


def sizes(buckets):
    return [[p.numel() for p in bucket] for bucket in buckets]


def test_a_bucket_holds_one_dtype():
    mixed = [*parameters(1, 2), *parameters(3, 4, dtype=torch.double), *parameters(5)]
    assert sizes(build_buckets(mixed)) == [[5], [4, 3], [2, 1]]


class Meeting:
    """Replicas as threads of this process: an ``all_reduce`` adds up what all of them bring."""

    def __init__(self, replicas: int) -> None:
        self._barrier = threading.Barrier(replicas, timeout=60)
        self._counts: dict[int, int] = {}  # calls of each thread
        self._brought: dict[int, list[torch.Tensor]] = {}  # tensors of the n-th call of all
        self._lock = threading.Lock()

    def all_reduce(self, flat, group, async_op):
        thread = threading.get_ident()
        with self._lock:
            self._counts[thread] = number = self._counts.get(thread, 0) + 1
            self._brought.setdefault(number, []).append(flat)

        def wait():
            self._barrier.wait()
            total = sum(self._brought[number])
            self._barrier.wait()
            flat.copy_(total)

        return SimpleNamespace(wait=wait)


def summed(replicas, uses, monkeypatch):
    """The gradients of each replica, which differentiates the parameters that it uses."""
    meeting = Meeting(len(uses))
    monkeypatch.setattr(gradient_sync.distributed, "all_reduce", meeting.all_reduce)
    world = SimpleNamespace(
        replica_collective=lambda activity: nullcontext(lambda work: work.wait()),
        replica_group=None,
        open_operations=0,
        left=False,
    )

    def work(parameters, used):
        sync = GradientSync(parameters, world, None)
        sum(parameters[n].sum() * factor for n, factor in used.items()).backward()
        sync.finish()

    with ThreadPoolExecutor(len(uses)) as pool:
        list(pool.map(work, replicas, uses))
    return [
        [None if p.grad is None else p.grad.tolist() for p in parameters]
        for parameters in replicas
    ]


@pytest.mark.parametrize("bucket_bytes", [4, 2**22], ids=["a bucket each", "one bucket"])
def test_a_weight_that_one_replica_has_used_gets_its_gradient_in_all(bucket_bytes, monkeypatch):
    """Data decide in each replica which weights are used; what none has used stays as it is."""
    monkeypatch.setattr(gradient_sync, "BUCKET_BYTES", bucket_bytes)
    replicas = [parameters(1, 2, 1, 1) for _ in range(2)]
    uses = [{0: 1.0, 1: 3.0}, {0: 0.5, 2: 2.0}]
    wanted = [[1.5], [3.0, 3.0], [2.0], None]
    assert summed(replicas, uses, monkeypatch) == [wanted, wanted]

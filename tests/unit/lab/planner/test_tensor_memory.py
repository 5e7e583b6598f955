"""Bytes are counted from the creation of a tensor until its memory is freed."""

import torch

from hocket_lab.planner.tensor_memory import LiveTensorMemory


def test_memory_counts_once_and_until_it_is_freed():
    excluded = torch.ones(100)
    with LiveTensorMemory(excluded) as memory:
        a = torch.ones(8)
        view = a[:4]
        assert memory.live_bytes == 32
        del a
        assert memory.live_bytes == 32
        del view
        assert memory.live_bytes == 0
        excluded.add_(1)
        assert (memory.live_bytes, memory.peak_bytes) == (0, 32)
        copy = excluded.untyped_storage().clone()
        assert memory.live_bytes == 400
        del copy
        assert memory.live_bytes == 0


def test_meta_tensors_take_no_memory():
    with LiveTensorMemory() as memory:
        kept = torch.empty(5, device="meta")
        assert (kept.shape, memory.live_bytes) == ((5,), 0)

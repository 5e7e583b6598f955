"""Bytes are counted from when a tensor is made until its memory is freed."""

import torch
from torch import nn

from hocket.planner.tensor_memory import LiveTensorMemory


def test_memory_counts_once_and_until_it_is_freed():
    outside = torch.ones(100)
    with LiveTensorMemory(outside) as living:
        a = torch.ones(8)
        view = a[:4]
        assert living.now == 32
        del a
        assert living.now == 32
        del view
        assert living.now == 0
        outside.add_(1)
        assert (living.now, living.peak) == (0, 32)
        copy = outside.untyped_storage().clone()
        assert living.now == 400
        del copy
        assert living.now == 0


def test_what_a_graph_keeps_lives_until_its_backward():
    layer = nn.Linear(4, 4, bias=False)
    with LiveTensorMemory(layer.weight) as living:
        output = layer(torch.ones(2, 4)).exp()
        assert living.now == 32 + 32  # the input of the layer, the output of exp
        total = output.sum()
        del output
        assert living.now == 32 + 32 + 4
        total.backward()
        del total
        assert living.now == 64  # the gradient of the weight
        assert living.peak > 68


def test_tensors_without_numbers_take_no_memory():
    with LiveTensorMemory() as living:
        kept = torch.empty(5, device="meta")
        assert (kept.shape, living.now) == ((5,), 0)

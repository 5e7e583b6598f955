"""Parameters are gathered in buckets of one dtype each, the last ones first."""

import torch
from torch import nn

from hocket.distributed import gradient_sync
from hocket.distributed.gradient_sync import build_buckets


def parameters(*sizes, dtype=torch.float32):
    return [nn.Parameter(torch.zeros(size, dtype=dtype)) for size in sizes]


def sizes(buckets):
    return [[p.numel() for p in bucket] for bucket in buckets]


def test_a_bucket_is_filled_from_the_last_parameter_on(monkeypatch):
    monkeypatch.setattr(gradient_sync, "BUCKET_BYTES", 4 * 10)
    assert sizes(build_buckets(parameters(1, 2, 3, 4, 5, 6))) == [[6], [5, 4], [3, 2, 1]]


def test_a_parameter_larger_than_a_bucket_has_its_own(monkeypatch):
    monkeypatch.setattr(gradient_sync, "BUCKET_BYTES", 4 * 10)
    assert sizes(build_buckets(parameters(1, 1, 50, 1, 1))) == [[1, 1], [50], [1, 1]]


def test_a_bucket_holds_one_dtype():
    mixed = [*parameters(1, 2), *parameters(3, 4, dtype=torch.double), *parameters(5)]
    assert sizes(build_buckets(mixed)) == [[5], [4, 3], [2, 1]]


def test_without_parameters_there_are_no_buckets():
    assert build_buckets([]) == []

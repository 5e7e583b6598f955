"""Statistics over all replicas have the precision of BatchNorm's."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from hocket.distributed import sync_batchnorm
from hocket.distributed.sync_batchnorm import SyncBatchNorm


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_an_input_of_few_bits_has_statistics_of_many(dtype, monkeypatch):
    monkeypatch.setattr(sync_batchnorm, "_all_reduce", lambda tensor, world: tensor.clone())
    torch.manual_seed(0)
    wanted = nn.BatchNorm2d(3, dtype=torch.promote_types(dtype, torch.float32))
    found = SyncBatchNorm(
        nn.BatchNorm2d(3, dtype=wanted.weight.dtype), SimpleNamespace(left=False)
    )
    x = (torch.randn(64, 3, 8, 8) + 3).to(dtype)
    output, expected = found(x), wanted(x)
    assert output.dtype == expected.dtype == dtype
    torch.testing.assert_close(output, expected)
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name))

"""Device of a process: the one that is asked for, or one of the machine's GPUs for each."""

import pytest
import torch
from torch import nn

from hocket.training import trainer
from hocket.training.session.cut_network import CutNetwork
from hocket.training.trainer import _device_here


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(trainer, "find_device", lambda network: torch.device("cuda", 0))
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("variables", "device", "wanted"),
    [
        ({}, None, "cuda:0"),
        ({}, "cuda", "cuda:0"),
        ({"LOCAL_RANK": "1", "RANK": "4"}, "cuda", "cuda:1"),
        ({"LOCAL_RANK": "1", "RANK": "4"}, None, "cuda:1"),
        ({"LOCAL_RANK": "1", "RANK": "4"}, "cuda:0", "cuda:0"),
        ({"RANK": "3"}, None, "cuda:1"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("two_gpus")
def test_each_process_of_a_machine_has_the_next_gpu(variables, device, wanted, monkeypatch):
    """Also where the network of each is on the first one, and without a local rank."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert _device_here(nn.Linear(1, 1), device) == torch.device(wanted)


def test_short_memory_of_a_gpu_is_not_taken_for_inputs_that_a_network_refuses():
    class Large(nn.Module):
        def forward(self, x):
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        CutNetwork(Large(), 2).accepts(torch.ones(1, 3))

"""Choice of backends; the contracts of ports and engines test how they send."""

from types import SimpleNamespace

import pytest
import torch

from hocket.transport.processes import backends
from hocket.transport.processes.backends import Backends


@pytest.mark.parametrize(
    ("others", "direct"),
    [
        ([["nccl", "here", "gpu 1"]], True),
        ([["nccl", "there", "gpu 0"]], True),
        ([["nccl", "here", "gpu 0"]], False),
        ([[None, "there", "cpu"]], False),
    ],
    ids=["another GPU", "another machine", "the same GPU", "none"],
)
def test_tensors_go_directly_only_if_every_process_has_a_gpu_of_its_own(
    others, direct, monkeypatch
):
    """All decide alike, as forming groups waits for all of them."""
    monkeypatch.setattr(backends, "gpu_backend_name", lambda device: "nccl")
    monkeypatch.setattr(backends, "_device_id", lambda device: "gpu 0")
    monkeypatch.setattr(backends, "find_shared", lambda world: {})
    monkeypatch.setattr(backends.platform, "node", lambda: "here")
    formed = []
    groups = SimpleNamespace(form_direct=lambda name: formed.append(name) or ({}, None))
    world = SimpleNamespace(
        replica_group=None, size=2, groups=groups, gather=lambda mine: [mine, *others]
    )
    Backends(world, torch.device("cuda", 0))
    assert formed == ["nccl"] * direct

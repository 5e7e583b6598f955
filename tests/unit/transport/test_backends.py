"""Choice of backends; the contracts of ports and engines test how they send."""

import torch

from hocket.transport.backends import gpu_backend_name


def test_cpus_have_no_direct_backend():
    assert gpu_backend_name(torch.device("cpu")) is None

"""What a carrier does beside carrying, which the contracts of ports and engines test."""

import torch

from hocket.transport.backends import direct_backend_name


def test_cpus_have_no_way_of_their_own():
    assert direct_backend_name(torch.device("cpu")) is None

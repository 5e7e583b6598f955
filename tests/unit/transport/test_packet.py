"""Packets of skipped batches, and packets behind a codec."""

import torch

from hocket.transport.packet import Activation
from hocket.tree import tensors

PACKET = Activation(
    3,
    1,
    {"h": torch.zeros(2), "mask": torch.ones(2)},
    (True, False),
    torch.ones(2),
    0.5,
    (False, True),
)


def test_the_packet_of_a_skipped_batch_has_no_tensor():
    empty = PACKET.without_values()
    assert empty.skipped
    assert not PACKET.skipped
    assert not [*tensors(empty.values), *tensors(empty.targets), *empty.exact]
    assert (empty.batch, empty.epoch, empty.share) == (3, 1, 0.5)
    assert empty.differentiable == (True, False)


def test_behind_a_codec_a_packet_names_no_tensor_that_is_to_stay_exact():
    other = PACKET.with_values(torch.zeros(4))
    assert vars(other) | {"values": PACKET.values, "exact": PACKET.exact} == vars(PACKET)
    assert other.exact == ()

"""A packet is taken once, by the number of its batch; that of a skipped batch is empty."""

import pytest
import torch

from hocket.errors import PacketError
from hocket.transport.mailbox import Edge, NoNextStage
from hocket.transport.packet import Activation, Gradient
from hocket.tree import tensors


def activation(batch: int) -> Activation:
    return Activation(batch, 0, torch.zeros(1), (True,), None)


def test_a_repeated_packet_is_named():
    edge = Edge("stage 0", "stage 1")
    for port, packet, told in (
        (edge.to_next(), activation(4), "activations from stage 0 to stage 1: batch 4"),
        (edge.to_previous(), Gradient(4, ()), "gradients from stage 1 to stage 0: batch 4"),
    ):
        port.send(packet)
        with pytest.raises(PacketError, match=told):
            port.send(packet)


def test_the_end_of_the_network_sends_no_gradients():
    NoNextStage().send(activation(0))
    with pytest.raises(PacketError, match=r"gradient of batch 2 .* the end of the network"):
        NoNextStage().receive(2)


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

"""A packet is taken once, by the number of its batch."""

import pytest
import torch

from hocket.errors import PacketError
from hocket.transport.mailbox import Edge, Mailbox, NoNextStage
from hocket.transport.packet import Activation, Gradient


def activation(batch: int) -> Activation:
    return Activation(batch, 0, torch.zeros(1), (True,), None)


def test_the_directions_of_an_edge_are_separate():
    edge = Edge("stage 0", "stage 1")
    sent, returned = activation(3), Gradient(3, (None,))
    edge.to_next().send(sent)
    edge.to_previous().send(returned)
    assert edge.to_previous().receive(3) is sent
    assert edge.to_next().receive(3) is returned
    assert edge.activations.state_dict() == edge.gradients.state_dict() == []


def test_packets_are_taken_by_number_in_any_order():
    edge = Edge("stage 0", "stage 1")
    for batch in (0, 1, 2):
        edge.to_next().send(activation(batch))
    assert [edge.to_previous().receive(batch).batch for batch in (2, 0, 1)] == [2, 0, 1]


def test_a_repeated_packet_is_named():
    edge = Edge("stage 0", "stage 1")
    edge.to_next().send(activation(4))
    with pytest.raises(
        PacketError, match="activations from stage 0 to stage 1: batch 4 was sent twice"
    ):
        edge.to_next().send(activation(4))
    edge.to_previous().send(Gradient(4, ()))
    with pytest.raises(
        PacketError, match="gradients from stage 1 to stage 0: batch 4 was sent twice"
    ):
        edge.to_previous().send(Gradient(4, ()))


@pytest.mark.parametrize(("waiting", "text"), [((), "none"), ((1, 7), "1, 7")])
def test_a_missing_packet_is_named_with_the_waiting_ones(waiting, text):
    box = Mailbox("things from here to there", Gradient)
    for batch in waiting:
        box.put(Gradient(batch, ()))
    with pytest.raises(
        PacketError,
        match=f"things from here to there: batch 4 was expected .* waiting are {text}$",
    ):
        box.take(4)


def test_a_packet_is_gone_once_it_is_taken():
    edge = Edge("stage 0", "stage 1")
    edge.to_next().send(activation(0))
    edge.to_previous().receive(0)
    with pytest.raises(PacketError, match="batch 0 was expected and is not there"):
        edge.to_previous().receive(0)


def test_the_end_of_the_network_sends_no_gradients():
    NoNextStage().send(activation(0))
    with pytest.raises(
        PacketError,
        match="gradient of batch 2 was expected, but the end of the network sends none",
    ):
        NoNextStage().receive(2)

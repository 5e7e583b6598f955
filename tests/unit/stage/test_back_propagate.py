"""Leaves of a stage's graph, built from the packet that it has received."""

import pytest
import torch

from hocket.errors import PacketError
from hocket.stage.back_propagate import graph_leaves
from hocket.transport.packet import Activation


def test_leaves_have_gradients_where_the_sender_wants_them():
    first, second = graph_leaves(
        Activation(0, 0, (torch.ones(2), torch.ones(2)), (False, True), None)
    )
    assert (first.requires_grad, second.requires_grad) == (False, True)


@pytest.mark.parametrize("flags", [(), (True,), (True, False, True)])
def test_an_activation_that_does_not_tell_of_each_tensor_is_refused(flags):
    packet = Activation(7, 0, (torch.ones(2), torch.ones(2)), flags, None)
    words = f"activation 7 has 2 tensors, and tells of {len(flags)} whether they are diff"
    with pytest.raises(PacketError, match=words):
        graph_leaves(packet)

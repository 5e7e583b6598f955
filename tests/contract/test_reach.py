"""Losses that cross some edges and stop: between greedy learning and back-propagation."""

from dataclasses import dataclass, replace

import pytest
from torch import nn

from contract.small import conv, data, different, far, mlp, train, values_of
from hocket.errors import OptionError
from hocket.methods import DGL, FDG
from hocket.signals import Reach, Signal
from hocket.signals.signal import BackwardRoots
from hocket.transport.mailbox import Mailbox


@dataclass(frozen=True)
class Silent(Signal):
    """A stage without a loss."""

    def backward_roots(self, network, inputs):
        return BackwardRoots((), ())


def silent(reach, **choices):
    return replace(DGL(reach=reach), signal=Reach(reach, Silent()), **choices)


@pytest.mark.parametrize("order", ["backward-first", "forward-first"])
@pytest.mark.parametrize(("net", "stages"), [(mlp, 2), (mlp, 4), (conv, 3)])
def test_without_local_losses_the_whole_reach_is_fdg(net, stages, order):
    batches = data(net, 12, last=3)
    ours, fdg = (
        train(method, net(stages), batches).state
        for method in (silent(stages - 1, order=order), FDG(order=order))
    )
    assert not different(ours, fdg)


@pytest.mark.parametrize(
    ("reach", "sent"), [(1, [1, 1, 1]), (2, [1, 2, 1]), (3, [1, 1, 1])], ids=str
)
def test_gradients_that_go_equally_far_travel_as_one(reach, sent, monkeypatch):
    """From stages 1, 2 and 3 of four."""
    packets, put = {}, Mailbox.put

    def watched(self, packet):
        if packet.kind == "gradient":
            packets[self._name] = len(packet.values)
        put(self, packet)

    monkeypatch.setattr(Mailbox, "put", watched)
    train(DGL(reach=reach), mlp(4), data(mlp, 8))
    assert [packets[f"gradients from stage {k} to stage {k - 1}"] for k in (1, 2, 3)] == sent
    assert [DGL(reach=reach).gradients_sent(k, 4) for k in (1, 2, 3)] == sent


def test_a_reach_beyond_the_last_stage_is_refused():
    with pytest.raises(OptionError, match="reach=3, and the last of 3 stages is 2 edges"):
        train(DGL(reach=3), mlp(3), data(mlp, 2))


def test_replicas_have_the_gradients_of_all_losses(monkeypatch):
    """Close in float64, with heads that have no statistics, which replicas would not share."""
    monkeypatch.setattr(nn, "BatchNorm1d", lambda *_, **__: nn.Identity())
    alone, replicated = (
        train("dgl:reach=1,head=mlp", mlp(3), data(mlp, 6), replicas=count).trainer
        for count in (1, 2)
    )
    assert not far(values_of(alone), values_of(replicated))

"""InfoPro: its decoder, its weights, and the input that travels with the activations."""

import pytest
import torch
from torch import nn

from contract.small import conv, data, mlp, sgd, train
from hocket import Trainer
from hocket.errors import OptionError
from hocket.methods import DGL
from hocket.transport.mailbox import Mailbox


def test_the_head_starts_as_it_would_alone():
    """So that rows with and without a decoder differ in the loss alone."""
    starts = []
    for method in (DGL(), DGL(infopro=[1, 1, 1, 1])):
        trainer = Trainer(conv(2), method=method, optimizer=sgd)
        trainer.prepare(data(conv, 1)[0][0])
        network = trainer.stages[0].signal_network
        starts.append(network["head"] if method.signal.needs_input else network)
    for a, b in zip(*(head.parameters() for head in starts), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("options", "travels"),
    [({"infopro": [1, 1, 1, 1]}, [True, True, False]), ({}, [False, False, False])],
    ids=["infopro", "dgl"],
)
def test_the_input_travels_to_stages_that_reconstruct_it(options, travels, monkeypatch):
    """Not to the last one, which has the loss of the network."""
    seen, put = {}, Mailbox.put

    def watched(self, packet):
        if packet.kind == "activation":
            seen[self._name, packet.batch] = packet.network_input
        put(self, packet)

    monkeypatch.setattr(Mailbox, "put", watched)
    batches = data(conv, 3)
    train(DGL(**options), conv(4), batches)
    for k, there in enumerate(travels):
        for b, (x, _) in enumerate(batches):
            found = seen[f"activations from stage {k} to stage {k + 1}", b]
            assert torch.equal(found, x) if there else found is None


def test_vectors_are_refused():
    with pytest.raises(OptionError, match=r"infopro reconstructs .* are \(5,\) and \(5,\)"):
        train(DGL(infopro=[1, 1, 1, 1]), mlp(2), data(mlp, 1))


def test_inputs_that_are_no_single_tensor_are_refused():
    class Sum(nn.Conv2d):
        def forward(self, pair):
            return super().forward(pair[0] + pair[1])

    first, last = Sum(2, 2, 1), nn.Sequential(nn.Flatten(), nn.Linear(18, 3))
    trainer = Trainer([first, last], method=DGL(infopro=[1, 1, 1, 1]), optimizer=sgd)
    with pytest.raises(OptionError, match=r"infopro reconstructs .* they are \(\) and"):
        trainer.prepare((torch.randn(2, 2, 3, 3), torch.randn(2, 2, 3, 3)))

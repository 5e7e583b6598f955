"""Only activations are encoded or need gradients: no masks and tables on their way."""

import pytest
import torch
from torch import nn

import hocket
from contract.small import sgd
from hocket import Plan, Trainer
from hocket.codecs import VQ, Cast, Integers
from hocket.transport.encoded import EncodedPort

CODECS = [Integers(), VQ(groups=2, codes=4), Cast(torch.bfloat16), Cast(torch.float16)]
# Of all linearizations, one of them where the first stage forwards without a graph.
METHODS = ["bp", "fdg", "ddg", "fr", "pipedream-2bw:accumulate=2"]
VALUES = [(-1e9, -0.1), (torch.finfo().min, 0.3)]


class MaskedNetwork(nn.Module):
    """A mask, a table and the weights of the embedding cross two cuts, with an activation."""

    def __init__(self, values):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.second = nn.Linear(8, 8)
        self.third = nn.Linear(8, 8)
        self.register_buffer("positions", torch.linspace(0, 0.5, 8))
        self.mask_values = values
        self.arrived = []

    def forward(self, tokens):
        mask = torch.where(tokens == 0, *self.mask_values)
        table = self.positions * 1.0
        hidden = self.third(self.second(self.embed(tokens)) + table)
        if not mask.is_meta:
            self.arrived.append((mask, table))
        scores = (hidden.softmax(-1) + mask[..., None].sigmoid() + table).mean(1)
        return scores @ self.embed.weight.T


@pytest.mark.filterwarnings("ignore:the codec VQ:UserWarning")  # of gradients
@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize(
    ("method", "values"), [(name, VALUES[n % 2]) for n, name in enumerate(METHODS)], ids=str
)
def test_masks_tables_and_shared_weights_arrive_exactly(method, codec, values, monkeypatch):
    packets = []
    send = EncodedPort.send

    def record(port, packet):
        if packet.kind == "activation" and not packet.skipped:
            packets.append(packet)
        send(port, packet)

    monkeypatch.setattr(EncodedPort, "send", record)
    torch.manual_seed(0)
    network, stages = MaskedNetwork(values), Plan(("second", "third"))
    tokens = torch.randint(0, 11, (8, 6, 5), generator=torch.Generator().manual_seed(0))
    trainer = Trainer(network, method=method, stages=stages, codec=codec, optimizer=sgd)
    trainer.fit([(inputs, inputs[:, 0]) for inputs in tokens], epochs=1, progress=False)
    assert len(packets) == 2 * 8
    for packet in packets:
        shapes = [tuple(tensor.shape) for tensor in packet.values]
        assert shapes == [(6, 5), (8,), (6, 5, 8), (11, 8)]
        assert packet.exact == (True, True, False, True)
        assert packet.differentiable == (False, False, True, True)
    for batch in range(8):
        first, second = (packet.values for packet in packets if packet.batch == batch)
        for position in (0, 1, 3):
            assert torch.equal(first[position], second[position])
    masks, tables = zip(*network.arrived, strict=True)
    assert all(torch.isin(mask, torch.tensor(values)).all() for mask in masks)
    assert all(torch.equal(table, network.positions) for table in tables)
    # PyTorch chooses kernels by that: of attention, for example, where a bias needs a gradient.
    assert not any(value.requires_grad for value in (*masks, *tables))


def test_a_stage_that_learns_nothing_sends_encoded_activations():
    """Nobody can tell there which of its values are activations."""
    layers = hocket.zoo.mlp(in_features=8, hidden=[8, 8], num_classes=2)
    layers[0].requires_grad_(False)
    batches = [(torch.randn(4, 8), torch.tensor([0, 1, 0, 1])) for _ in range(3)]
    trainer = Trainer(layers, stages=2, method="fdg", codec=Cast(torch.bfloat16), optimizer=sgd)
    trainer.fit(batches, epochs=1, progress=False)
    assert trainer.stages[0].send_stats.compression == pytest.approx(2)

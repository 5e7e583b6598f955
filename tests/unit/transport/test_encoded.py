"""Ports with a codec: what is written, what is left alone, and what is noted of it."""

import pytest
import torch

from contract.small import conv, data, mlp, sgd, train
from hocket import Trainer
from hocket.methods import BP, DGL, FDG
from hocket.transport.codecs import VQ, Cast, Exact, Integers
from hocket.transport.encoded import EncodedPort, SendStats
from hocket.transport.mailbox import Edge
from hocket.transport.packet import Activation, Gradient

BF16 = Cast(torch.bfloat16)


def ports(codec, ledger=None):
    """Both ends of an edge."""
    edge = Edge("a", "b")
    upper = EncodedPort(edge.to_next(), codec, codec.gradients, 0, ledger)
    return upper, EncodedPort(edge.to_previous(), codec.gradients, codec, 0)


def test_floating_point_values_are_written_and_all_else_is_left():
    upper, lower = ports(BF16)
    values = {"x": torch.tensor([1.001]), "labels": (torch.tensor([7]), None, 0.5)}
    targets = torch.tensor([1.001])
    upper.send(Activation(0, 0, values, (True, False), targets))
    got = lower.receive(0)
    assert got.values["x"].item() == 1.0
    assert got.values["x"].dtype == torch.float32
    labels, nothing, half = got.values["labels"]
    assert (labels.tolist(), nothing, half) == ([7], None, 0.5)
    assert torch.equal(got.targets, targets)


def test_gradients_come_back_and_none_stays_none():
    upper, lower = ports(BF16)
    lower.send(Gradient(3, (torch.tensor([1.001], dtype=torch.float64), None)))
    first, second = upper.receive(3).values
    assert (first.dtype, first.item(), second) == (torch.float64, 1.0, None)


def test_every_place_has_codebooks_of_its_own():
    upper, lower = ports(VQ(groups=1, codes=2, decay=1.0))
    near, far = torch.tensor([[0.0], [1.0]]), torch.tensor([[100.0], [200.0]])
    upper.send(Activation(0, 0, (near, far), (True, True), None))
    got = lower.receive(0).values
    assert torch.equal(got[0], near)
    assert torch.equal(got[1], far)


def test_what_was_sent_is_noted():
    ledger = SendStats()
    assert ledger.compression is None
    upper, _ = ports(VQ(groups=1, codes=2, decay=1.0), ledger)
    value = torch.tensor([[3.0, 4.0]] * 30 + [[0.0, 0.0]] * 30)
    upper.send(Activation(0, 0, value, (True,), None))
    assert ledger.error == 0
    assert ledger.perplexity == pytest.approx(2)
    assert ledger.plain_bytes == 60 * 2 * 4
    assert ledger.encoded_bytes == 60 + 2 * 2 * 4
    upper.send(Activation(1, 0, 2 * value, (True,), None))
    assert ledger.error == 0, "measured of some packets only"
    upper.send(Activation(16, 0, 2 * value, (True,), None))
    assert ledger.error == pytest.approx(0.5)
    assert ledger.compression == pytest.approx(3 * 480 / (3 * 60 + 16))


def test_the_error_of_what_is_all_zeros_is_nothing():
    ledger = SendStats()
    upper, _ = ports(Integers(), ledger)
    upper.send(Activation(0, 0, torch.zeros(4), (True,), None))
    assert (ledger.error, ledger.perplexity) == (0, None)


@pytest.mark.parametrize("codec", [BF16, Integers()], ids=str)
def test_a_codec_changes_what_stages_learn_but_not_much(codec):
    exact, coded = mlp(2), mlp(2)
    train(FDG(), exact, data(mlp, 5))
    trainer = Trainer(coded, method=FDG(), optimizer=sgd, codec=codec)
    trainer.fit(data(mlp, 5), epochs=1, progress=False)
    for a, b in zip(exact, coded, strict=True):
        for x, y in zip(a.parameters(), b.parameters(), strict=True):
            assert not torch.equal(x, y)
            assert torch.allclose(x, y, atol=2e-2)
    sender, last = trainer.stages
    assert sender.send_stats.compression > 1.9
    assert last.send_stats.compression is None


def test_a_local_loss_learns_from_what_was_quantized():
    trainer = Trainer(conv(3), method=DGL(), optimizer=sgd, codec=VQ(groups=1, codes=8))
    history = trainer.fit(data(conv, 6), epochs=4, progress=False)
    assert history[-1].loss < history[0].loss


def test_a_bias_is_warned_of():
    def prepared(method, codec):
        trainer = Trainer(mlp(2), method=method, optimizer=sgd, codec=codec)
        trainer.prepare(data(mlp, 1)[0][0])

    with pytest.warns(UserWarning, match="all stages but the last learn from biased gradients"):
        prepared(FDG(), VQ(groups=1, codes=2))
    # Warnings are errors elsewhere.
    prepared(DGL(), VQ(groups=1, codes=2))
    prepared(BP(), BF16)
    prepared(BP(), Exact())

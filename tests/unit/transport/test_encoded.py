"""Ports with a codec: values that are encoded, values that are not, and the statistics."""

from unittest.mock import patch

import pytest
import torch

from contract.small import data, mlp, sgd
from hocket import Trainer
from hocket.codecs import VQ, Cast, Exact, Integers
from hocket.codecs.vq import _VQDecoder
from hocket.errors import OptionError
from hocket.methods import BP, DGL, FDG
from hocket.transport.encoded import EncodedPort
from hocket.transport.mailbox import Edge
from hocket.transport.packet import Activation
from hocket.transport.stats import SendStats


def ports(codec, stats=None):
    """Build both ports of an edge."""
    edge = Edge("a", "b")
    to_next = EncodedPort(edge.to_next(), codec, codec.gradients, 0, stats)
    return to_next, EncodedPort(edge.to_previous(), codec.gradients, codec, 0)


def test_sent_bytes_error_and_perplexity_are_recorded():
    stats = SendStats()
    assert stats.compression is None
    to_next, _ = ports(VQ(groups=1, codes=2, decay=1.0), stats)
    value = torch.tensor([[3.0, 4.0]] * 30 + [[0.0, 0.0]] * 30)
    to_next.send(Activation(0, 0, value, (True,), None))
    assert stats.error == 0
    assert stats.perplexity == pytest.approx(2)
    assert stats.plain_bytes == 60 * 2 * 4
    assert stats.encoded_bytes == 60 + 2 * 2 * 4
    to_next.send(Activation(1, 0, 2 * value, (True,), None))
    assert stats.error == 0, "it is measured for some packets only"
    to_next.send(Activation(16, 0, 2 * value, (True,), None))
    assert stats.error == pytest.approx(0.5)
    assert stats.compression == pytest.approx(3 * 480 / (3 * 60 + 16))


@pytest.mark.parametrize(
    ("codec", "decoder", "count"),
    [(Integers(), Integers, 1), (VQ(groups=1, codes=2, decay=1.0), _VQDecoder, 2)],
)
def test_packets_are_decoded_where_they_are_measured_or_a_decoder_remembers(
    codec, decoder, count
):
    stats = SendStats()
    to_next, _ = ports(codec, stats)
    with patch.object(decoder, "decode", autospec=True, side_effect=decoder.decode) as decode:
        for batch in (1, 16):  # the first brings the codebooks
            to_next.send(Activation(batch, 0, torch.eye(2), (True,), None))
    assert stats.error == pytest.approx(0, abs=1e-6)
    assert decode.call_count == count


@pytest.mark.parametrize("codes", [{}, {"indices": torch.tensor(3)}], ids=str)
def test_the_error_of_zeros_is_zero_and_only_vq_has_a_perplexity(codes, monkeypatch):
    monkeypatch.setattr(Integers, "encode", lambda _, tensor: codes | {"all": tensor})
    monkeypatch.setattr(Integers, "decode", lambda _, encoded: encoded["all"])
    stats = SendStats()
    to_next, _ = ports(Integers(), stats)
    to_next.send(Activation(0, 0, torch.zeros(4), (True,), None))
    assert (stats.error, stats.perplexity) == (0, None)


def test_codes_that_are_a_tensor_are_refused_as_they_would_not_be_decoded(monkeypatch):
    monkeypatch.setattr(Integers, "encode", lambda _, tensor: tensor.half())
    with pytest.raises(OptionError, match=r"this edge sends: .* a list such as \[codes\]"):
        ports(Integers())[0].send(Activation(0, 0, torch.zeros(4), (True,), None))


def test_a_width_that_a_codec_cannot_divide_is_refused_with_its_edge():
    trainer = Trainer(mlp(3), method=DGL(), optimizer=sgd, codec=VQ(groups=7, codes=2))
    ((x, y),) = data(mlp, 1)
    with pytest.raises(OptionError, match=r"stage 0 to stage 1 .* into 7 groups; .*\n.stage 0"):
        trainer.step(x, y)


def test_a_codec_that_biases_gradients_warns():
    def prepare(method, codec):
        trainer = Trainer(mlp(2), method=method, optimizer=sgd, codec=codec)
        trainer.prepare(data(mlp, 1)[0][0])

    with pytest.warns(UserWarning, match="all stages but the last learn from biased gradients"):
        prepare(FDG(), VQ(groups=1, codes=2))
    # These do not warn: warnings are errors in the tests.
    prepare(DGL(), VQ(groups=1, codes=2))
    prepare(BP(), Cast(torch.bfloat16))
    prepare(BP(), Exact())

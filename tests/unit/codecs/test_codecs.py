"""Codecs as text, and the precision that each one loses; of vq by loops over vectors."""

import math
import re
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hocket.codecs import VQ, Cast, Integers
from hocket.codecs.registry import as_codec
from hocket.codecs.vq import UNUSED, nearest_codes
from hocket.errors import NonFiniteError, OptionError, PacketError

LOSSY = [Integers(), VQ(groups=2, codes=4), VQ(groups=4, codes=4), VQ(groups=1, codes=300)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_int8_keeps_every_number_of_16_bits_within_half_a_step(dtype):
    """As one packet of all of them, and as packets of which each is the largest number."""
    limits = torch.finfo(dtype)
    numbers = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(dtype)
    numbers = numbers[numbers.isfinite()]
    # 61 and 2**7 or 2**10 have no divisor in common: mantissas and exponents of all kinds.
    alone = numbers[numbers != 0][::61]
    for packet in (numbers, *torch.stack([alone, alone * -0.7, alone * 0.01], dim=1)):
        decoded = Integers().decode(Integers().encode(packet)).double()
        exact = packet.double()
        largest = exact.abs().amax()
        assert (decoded * exact >= 0).all()
        assert (decoded[exact.abs() == largest] == exact[exact.abs() == largest]).all()
        # Half of the distance between two numbers of the type comes on top.
        rounding = (decoded.abs() * limits.eps).clamp(min=limits.tiny * limits.eps) / 2
        assert ((decoded - exact).abs() <= largest / 127 * 0.5001 + rounding).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_int8_encodes_the_smallest_and_the_largest_numbers(dtype):
    limits = torch.finfo(dtype)
    for largest in (limits.max, limits.max * (1 - limits.eps), limits.tiny * 200, 1e-40, 7e-45):
        tensor = torch.tensor([largest, -largest / 2, 0.0], dtype=dtype)
        decoded = Integers().decode(Integers().encode(tensor))
        assert (decoded - tensor).abs().max().item() <= largest / 127 * 0.51
        assert decoded[0] > 0 > decoded[1]


@pytest.mark.parametrize("codec", LOSSY, ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nan_and_infinity_are_refused(codec, value):
    tensor = torch.ones(10, 4, 6, 5)
    tensor[3, 1, 2, 2] = value
    with pytest.raises(NonFiniteError, match=f"to be sent holds {value}, which its codec"):
        codec.encoder(0).encode(tensor)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("int4", "unknown codec 'int4' (did you mean 'int8'?); there are"),
        ("vq:code=3", "unknown option 'code' (did you mean 'codes'?)"),
        ("vq:codes=many", "codes is 'many'; wanted a whole number"),
        ("bf16:codes=3", "unknown option 'codes'; there are: none"),
        ("bf16:dtype=3", "unknown option 'dtype'; there are: none"),
        ("int8:bits=4", "unknown option 'bits'; there are: none"),
        (VQ, "which is no codec; call it"),
        (SimpleNamespace(encoder=print), "or one with all members of Codec"),
        (8, "codec is 8, which is no codec; give one such as VQ(groups=4) or 'int8'"),
    ],
)
def test_what_is_no_codec_is_refused(given, message):
    with pytest.raises(OptionError, match=re.escape(message)):
        as_codec(given)


@pytest.mark.parametrize(("name", "value"), [("bf16", 3.4e38), ("fp16", 7e4)])
def test_what_would_become_infinite_is_not_encoded(name, value):
    with pytest.raises(NonFiniteError):
        as_codec(name).encoder(0).encode(torch.tensor([1.0, value]))


# Vector quantization.


def vectors(count, width, seed=0):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def naive_nearest(rows, book):
    """Return for each row the first code at the smallest distance."""
    indices = []
    for row in rows.double():
        distances = [float((row - code).square().sum()) for code in book.double()]
        indices.append(distances.index(min(distances)))
    return indices


@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 9), st.integers(1, 3))
def test_every_vector_gets_its_nearest_code(seed, count, codes, width):
    rows, book = vectors(count, width, seed), vectors(codes, width, seed + 1)
    (indices,) = nearest_codes(rows.unsqueeze(0), book.unsqueeze(0)).tolist()
    assert indices == naive_nearest(rows, book)


@pytest.mark.parametrize("offset", [100.0, 1000.0])
def test_vectors_far_from_the_origin_get_their_nearest_codes(offset):
    """Their squares differ by less than a float32 of their size can tell."""
    rows, book = vectors(400, 4) + offset, vectors(32, 4, 1) + offset
    (indices,) = nearest_codes(rows.unsqueeze(0), book.unsqueeze(0)).tolist()
    expected = naive_nearest(rows, book)
    assert sum(a != b for a, b in zip(indices, expected, strict=True)) <= 1


def test_numbers_beyond_float32_are_refused():
    batch = vectors(40, 2).double()
    batch[0, 0] = 1e39
    with pytest.raises(NonFiniteError, match="to be sent holds inf, which its codec cannot"):
        VQ(groups=1, codes=4).encoder(0).encode(batch)


def test_many_vectors_are_searched_in_chunks(monkeypatch):
    rows, books = vectors(50, 4).reshape(2, 25, 4), vectors(12, 4, 1).reshape(2, 6, 4)
    whole = nearest_codes(rows, books)
    monkeypatch.setattr("hocket.codecs.vq.CHUNK", 30)
    assert torch.equal(nearest_codes(rows, books), whole)


def test_a_code_for_every_distinct_vector_loses_nothing():
    """Law (i), also if some vectors are frequent and others occur once."""
    distinct = vectors(12, 6)
    batch = distinct[torch.randint(12, (200,), generator=torch.Generator().manual_seed(1))]
    batch[:12] = distinct
    for groups in (1, 2, 3):
        codec = VQ(groups=groups, codes=12, decay=1.0)
        encoder, decoder = codec.encoder(0), codec.decoder()
        for sent in (batch, batch.flip(0)):
            assert torch.equal(decoder.decode(encoder.encode(sent)), sent)


def test_the_first_codebook_has_converged():
    """Codes are close to the means of their vectors."""
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    batch = centres.repeat(40, 1) + 0.1 * vectors(120, 2)
    codec = VQ(groups=1, codes=8, decay=1.0)
    book = codec.encoder(0).encode(batch)["books"][0]
    indices = naive_nearest(batch, book)
    for code, centre in enumerate(book):
        mine = [row for row, number in zip(batch, indices, strict=True) if number == code]
        if mine:
            assert torch.allclose(torch.stack(mine).mean(0), centre, atol=0.05)
    assert float((batch - book[indices]).square().mean()) < float(batch.var()) / 50


def test_moving_averages_are_those_of_the_naive_version():
    codec = VQ(groups=1, codes=3, decay=0.75)
    encoder = codec.encoder(0)
    batches = [vectors(60, 2, seed) + seed for seed in range(5)]
    books = [encoder.encode(batch)["books"][0].double() for batch in batches]
    indices = naive_nearest(batches[0], books[0])
    counts = torch.tensor([indices.count(code) for code in range(3)]).double()
    sums = torch.stack([sum_of_vectors(batches[0], indices, code) for code in range(3)])
    for number, batch in enumerate(batches[:-1]):
        indices = naive_nearest(batch, books[number])
        for code in range(3):
            counts[code] = 0.75 * counts[code] + 0.25 * indices.count(code)
            sums[code] = 0.75 * sums[code] + 0.25 * sum_of_vectors(batch, indices, code)
        assert all(counts > UNUSED), "no code of this test is reseeded"
        expected = sums / counts.unsqueeze(1)
        assert torch.allclose(books[number + 1], expected, atol=1e-5)


def sum_of_vectors(batch, indices, code):
    mine = [row.double() for row, number in zip(batch, indices, strict=True) if number == code]
    return torch.stack(mine).sum(0) if mine else torch.zeros(batch.shape[1]).double()


def test_unused_codes_are_moved_to_vectors():
    codec = VQ(groups=1, codes=6, decay=0.5)
    encoder, decoder = codec.encoder(0), codec.decoder()
    decoder.decode(encoder.encode(vectors(100, 2)))
    far = vectors(100, 2, 1) + 100
    errors = []
    for _ in range(25):
        decoded = decoder.decode(encoder.encode(far))
        errors.append(float((decoded - far).square().mean()))
    assert errors[-1] < errors[0] / 10
    books = encoder.encode(far)["books"][0]
    assert bool((books > 90).all()), "all codes have moved"


def test_indices_take_one_byte_up_to_256_codes():
    maps = torch.randn(4, 32, 16, 16)
    for groups, codes, size in ((8, 256, 1), (4, 256, 1), (4, 300, 2)):
        encoded = VQ(groups=groups, codes=codes).encoder(0).encode(maps)
        assert encoded["indices"].nbytes == 4 * 16 * 16 * groups * size
        assert encoded["books"].shape == (groups, codes, 32 // groups)
    # By default a group has eight channels.
    assert [VQ().group_count(channels) for channels in (64, 4)] == [8, 1]


def test_what_cannot_be_quantized_is_refused():
    with pytest.raises(OptionError, match=r"(?s)groups is 0.*40000;.*decay is 0.*every is 0"):
        VQ(groups=0, codes=40_000, decay=0.0, every=0)
    with pytest.raises(OptionError, match=r"(?s)groups is True;.*codes is 2.5;.*width is None"):
        VQ(groups=True, codes=2.5, width=None)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float64, "bf16"], ids=str)
def test_another_type_than_those_of_16_bits_is_refused(dtype):
    with pytest.raises(OptionError, match=f"dtype is {dtype!r}; use torch.bfloat16 or torch.f"):
        Cast(dtype)


def test_a_version_that_has_not_arrived_is_an_error():
    codec = VQ(groups=1, codes=4)
    encoder, decoder = codec.encoder(0), codec.decoder()
    batch = vectors(40, 2)
    first = encoder.encode(batch)
    late = {**first, "version": 9}
    late.pop("books")
    with pytest.raises(PacketError, match=r"needs version 9 of the codebooks.*known are none"):
        decoder.decode(late)
    decoder.decode(first)
    decoder.decode(encoder.encode(batch))
    first.pop("books")
    with pytest.raises(PacketError, match=r"needs version 0 of the codebooks.*known are 1"):
        decoder.decode(first)

"""Vector quantization beside a naive transcription of it, in loops over single vectors."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import OptionError, PacketError
from hocket.transport.codecs import VQ
from hocket.transport.codecs.vq import KEPT, UNUSED, nearest


def vectors(count, width, seed=0):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def naive_nearest(rows, book):
    """For each row the first code at the smallest distance."""
    found = []
    for row in rows.double():
        distances = [float((row - code).square().sum()) for code in book.double()]
        found.append(distances.index(min(distances)))
    return found


@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 9), st.integers(1, 3))
def test_every_vector_gets_its_nearest_code(seed, count, codes, width):
    rows, book = vectors(count, width, seed), vectors(codes, width, seed + 1)
    (found,) = nearest(rows.unsqueeze(0), book.unsqueeze(0)).tolist()
    assert found == naive_nearest(rows, book)


def test_many_vectors_are_searched_in_chunks(monkeypatch):
    rows, books = vectors(50, 4).reshape(2, 25, 4), vectors(12, 4, 1).reshape(2, 6, 4)
    whole = nearest(rows, books)
    monkeypatch.setattr("hocket.transport.codecs.vq.CHUNK", 30)
    assert torch.equal(nearest(rows, books), whole)


def test_a_code_for_every_distinct_vector_loses_nothing():
    """Law (i): also where some of them come often, and others once."""
    distinct = vectors(12, 6)
    batch = distinct[torch.randint(12, (200,), generator=torch.Generator().manual_seed(1))]
    batch[:12] = distinct
    for groups in (1, 2, 3):
        choice = VQ(groups=groups, codes=12, decay=1.0)
        encoder, decoder = choice.encoder(0), choice.decoder()
        for own in (batch, batch.flip(0)):
            assert torch.equal(decoder.decode(encoder.encode(own)), own)


def test_the_first_codebook_is_where_k_means_rests():
    """Codes are the means of their vectors, as near as the last round came."""
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    batch = centres.repeat(40, 1) + 0.1 * vectors(120, 2)
    choice = VQ(groups=1, codes=8, decay=1.0)
    book = choice.encoder(0).encode(batch)["books"][0]
    own = naive_nearest(batch, book)
    for code, place in enumerate(book):
        mine = [row for row, number in zip(batch, own, strict=True) if number == code]
        if mine:
            assert torch.allclose(torch.stack(mine).mean(0), place, atol=0.05)
    assert float((batch - book[own]).square().mean()) < float(batch.var()) / 50


def test_averages_move_as_the_naive_ones():
    choice = VQ(groups=1, codes=3, decay=0.75)
    encoder = choice.encoder(0)
    batches = [vectors(60, 2, seed) + seed for seed in range(5)]
    books = [encoder.encode(batch)["books"][0].double() for batch in batches]
    own = naive_nearest(batches[0], books[0])
    counts = torch.tensor([float(own.count(code)) for code in range(3)], dtype=torch.float64)
    sums = torch.stack(
        [sum_of(batches[0], own, code) for code in range(3)]
    )  # of the vectors that stand for each code
    for number, batch in enumerate(batches[:-1]):
        own = naive_nearest(batch, books[number])
        for code in range(3):
            counts[code] = 0.75 * counts[code] + 0.25 * own.count(code)
            sums[code] = 0.75 * sums[code] + 0.25 * sum_of(batch, own, code)
        assert all(counts > UNUSED), "no code of this test is reseeded"
        expected = sums / counts.unsqueeze(1)
        assert torch.allclose(books[number + 1], expected, atol=1e-5)


def sum_of(batch, own, code):
    mine = [row.double() for row, number in zip(batch, own, strict=True) if number == code]
    return torch.stack(mine).sum(0) if mine else torch.zeros(batch.shape[1]).double()


def test_codes_that_stand_for_nothing_are_put_among_the_vectors():
    choice = VQ(groups=1, codes=6, decay=0.5)
    encoder, decoder = choice.encoder(0), choice.decoder()
    decoder.decode(encoder.encode(vectors(100, 2)))
    far = vectors(100, 2, 1) + 100
    errors = []
    for _ in range(25):
        got = decoder.decode(encoder.encode(far))
        errors.append(float((got - far).square().mean()))
    assert errors[-1] < errors[0] / 10
    books = encoder.encode(far)["books"][0]
    assert bool((books > 90).all()), "all codes have moved"


def test_codebooks_travel_when_they_have_changed():
    batch = vectors(40, 2)
    for choice, sent in (
        (VQ(groups=1, codes=4, every=2), [True, False, True, False, True]),
        (VQ(groups=1, codes=4, decay=1.0), [True, False, False, False, False]),
    ):
        encoder, decoder = choice.encoder(0), choice.decoder()
        coded = [encoder.encode(batch) for _ in range(5)]
        assert ["books" in own for own in coded] == sent
        for own in coded:
            decoder.decode(own)


def test_bytes_are_as_few_as_the_codes_allow():
    maps = torch.randn(4, 32, 16, 16)
    for groups, codes, size in ((8, 256, 1), (4, 256, 1), (4, 300, 2)):
        coded = VQ(groups=groups, codes=codes).encoder(0).encode(maps)
        assert coded["indices"].nbytes == 4 * 16 * 16 * groups * size
        assert coded["books"].shape == (groups, codes, 32 // groups)


def test_an_index_of_two_bytes_reaches_every_code():
    batch = vectors(500, 2)
    choice = VQ(groups=1, codes=500, decay=1.0)
    coded = choice.encoder(0).encode(batch)
    assert sorted(coded["indices"][0].tolist()) == list(range(500))
    assert torch.equal(choice.decoder().decode(coded), batch)


def test_a_group_has_eight_channels_if_nothing_is_said():
    assert VQ().group_count(64) == 8
    assert VQ().group_count(4) == 1
    with pytest.raises(
        OptionError, match="cannot divide 12 channels into 5 groups; give groups"
    ):
        VQ(groups=5).group_count(12)


def test_options_out_of_range_are_told_at_once():
    told = r"(?s)groups is 0.*codes is 40000; use 2 to 32768, .*decay is 0.*every is 0"
    with pytest.raises(OptionError, match=told):
        VQ(groups=0, codes=40_000, decay=0.0, every=0)


def test_a_first_batch_smaller_than_the_codebook_is_refused():
    with pytest.raises(OptionError, match="vq wants 16 codes, but the first batch has only 9"):
        VQ(groups=1, codes=16).encoder(0).encode(vectors(9, 2))


def test_what_has_no_channels_is_refused():
    with pytest.raises(OptionError, match=r"batches of vectors or maps, .* shape \(5,\)"):
        VQ().encoder(0).encode(torch.ones(5))


def test_a_version_that_has_not_come_is_an_error():
    choice = VQ(groups=1, codes=4)
    encoder, decoder = choice.encoder(0), choice.decoder()
    batch = vectors(40, 2)
    first = encoder.encode(batch)
    late = {**first, "version": 9}
    late.pop("books")
    with pytest.raises(PacketError, match=r"wants version 9 of the codebooks.*known are none"):
        decoder.decode(late)
    decoder.decode(first)
    for _ in range(KEPT):
        decoder.decode(encoder.encode(batch))
    first.pop("books")
    with pytest.raises(PacketError, match=r"wants version 0 of the codebooks.*known are 1, 2"):
        decoder.decode(first)

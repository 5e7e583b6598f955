"""Codecs as text and objects, and the precision that each one loses."""

import math
import re

import pytest
import torch

from hocket.codecs import VQ, Integers
from hocket.codecs.registry import as_codec
from hocket.errors import NonFiniteError, OptionError

LOSSY = [
    Integers(),
    VQ(groups=2, codes=4),
    VQ(groups=4, codes=4),
    VQ(groups=1, codes=300),
]


def int8_bound(decoded, dtype, largest):
    """Return half a step, and half of the distance between two numbers of the type."""
    limits = torch.finfo(dtype)
    rounding = (decoded.abs() * limits.eps).clamp(min=limits.tiny * limits.eps) / 2
    return largest / 127 * 0.5001 + rounding


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_int8_keeps_every_number_of_16_bits_within_half_a_step(dtype):
    """As one packet of all of them, and as packets of which each is the largest number."""
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
        assert ((decoded - exact).abs() <= int8_bound(decoded, dtype, largest)).all()


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
        (8, "codec is 8, which is no codec; give one such as VQ(groups=4) or 'int8'"),
    ],
)
def test_what_is_no_codec_is_refused(given, message):
    with pytest.raises(OptionError, match=re.escape(message)):
        as_codec(given)

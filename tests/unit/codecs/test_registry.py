"""Codecs as objects and as text."""

import re

import pytest

from hocket.codecs import VQ, Integers
from hocket.codecs.registry import as_codec
from hocket.errors import OptionError


def test_a_codec_may_be_text():
    assert as_codec("int8") == Integers()
    assert as_codec(VQ(groups=2)) == VQ(groups=2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (VQ, "which is no codec; call it"),
        (8, "codec is 8, which is no codec; give one such as VQ(groups=4) or 'int8'"),
        ("int9", "unknown codec 'int9'"),
    ],
)
def test_what_is_no_codec_is_refused(given, message):
    with pytest.raises(OptionError, match=re.escape(message)):
        as_codec(given)

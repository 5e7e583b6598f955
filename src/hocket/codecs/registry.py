"""Codecs by name."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import torch

from hocket.codecs.codec import Codec
from hocket.codecs.stateless import Cast, Exact, Integers
from hocket.codecs.vq import VQ
from hocket.errors import OptionError, raise_problems, unknown_name
from hocket.options.hints import wrong_arguments
from hocket.options.named import Named

CODECS: Mapping[str, Callable[..., Codec]] = MappingProxyType(
    {
        "none": Exact,
        "bf16": partial(Cast, torch.bfloat16),
        "fp16": partial(Cast, torch.float16),
        "int8": Integers,
        "vq": VQ,
    }
)


def parse_codec(text: str) -> Codec:
    """Build the codec that is written ``name:option=value,option=value``.

    Raises:
        OptionError: The codec or an option does not exist, or a value is out of range.

    >>> parse_codec("vq:groups=4").codes
    256
    """
    asked = Named.parse(text)
    if asked.name not in CODECS:
        raise OptionError(unknown_name("codec", asked.name, CODECS))
    build = CODECS[asked.name]
    problems = wrong_arguments(build, asked.options)
    raise_problems(OptionError, f"cannot build codec {asked.name!r}", problems)
    return build(**asked.options)


def as_codec(codec: Codec | str) -> Codec:
    """Return a codec, which may be given as the text of `parse_codec`.

    Raises:
        OptionError: It is neither, or the text names no codec.
    """
    if isinstance(codec, str):
        return parse_codec(codec)
    if isinstance(codec, type) or not isinstance(codec, Codec):
        advice = "give one such as VQ(groups=4) or 'int8', or one with all members of Codec"
        advice = "call it" if callable(codec) else advice
        raise OptionError(f"codec is {codec!r}, which is no codec; {advice}")
    return codec

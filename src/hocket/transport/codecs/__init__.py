"""Codecs: how tensors are encoded on an edge, exactly or in fewer bytes."""

from hocket.transport.codecs.cast import Cast as Cast
from hocket.transport.codecs.codec import Codec as Codec
from hocket.transport.codecs.codec import Decoder as Decoder
from hocket.transport.codecs.codec import Encoder as Encoder
from hocket.transport.codecs.exact import Exact as Exact
from hocket.transport.codecs.integers import Integers as Integers
from hocket.transport.codecs.registry import CODECS as CODECS
from hocket.transport.codecs.registry import as_codec as as_codec
from hocket.transport.codecs.registry import parse_codec as parse_codec
from hocket.transport.codecs.vq import VQ as VQ

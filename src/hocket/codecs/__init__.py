"""Codecs: how tensors are encoded on an edge, exactly or in fewer bytes."""

from hocket.codecs.codec import Codec as Codec
from hocket.codecs.codec import Decoder as Decoder
from hocket.codecs.codec import Encoder as Encoder
from hocket.codecs.registry import CODECS as CODECS
from hocket.codecs.registry import as_codec as as_codec
from hocket.codecs.registry import parse_codec as parse_codec
from hocket.codecs.stateless import Cast as Cast
from hocket.codecs.stateless import Exact as Exact
from hocket.codecs.stateless import Integers as Integers
from hocket.codecs.vq import VQ as VQ

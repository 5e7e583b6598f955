"""How tensors are written on an edge: as they are, or in fewer bytes."""

from hocket.codec.cast import Cast as Cast
from hocket.codec.codec import Codec as Codec
from hocket.codec.codec import Decoder as Decoder
from hocket.codec.codec import Encoder as Encoder
from hocket.codec.codec import Exact as Exact
from hocket.codec.integers import Integers as Integers
from hocket.codec.registry import CODECS as CODECS
from hocket.codec.registry import codec_of as codec_of
from hocket.codec.vq import VQ as VQ

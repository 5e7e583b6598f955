"""Ports whose packets are encoded by a codec, and statistics of what it saves and loses.

The codec belongs to the training, not to the transport: stages that share one process encode
and decode as well, so that results do not depend on where stages run, to the bit.
"""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, Generic

import torch
from torch import Tensor

from hocket.codecs.codec import Codec, Decoder, Encoder
from hocket.codecs.vq import VQ
from hocket.errors import NonFiniteError, OptionError
from hocket.transport.port import Port, Received, Sent
from hocket.transport.stats import SendStats
from hocket.tree import Tree, map_tensors, tensors

MEASURE_EVERY = 16
"""Batches between two measurements of the codec's error."""


@dataclass(eq=False)
class EncodedPort(Generic[Sent, Received]):
    """Port that encodes the values it sends and decodes those it receives.

    Only floating point tensors are encoded, each position in the packet by its own encoder.
    Targets are sent as they are, and so are complex tensors, those without elements, those that
    the packet names as exact, and those with numbers that a codec cannot encode, such as the
    infinities of a mask.

    Args:
        send_codec: Codec of the values that are sent.
        receive_codec: Codec of the values that are received.
        seed: Seed of encoders that draw random numbers.
        stats: Statistics to update with every packet sent; none if not given.
        self_contained: Whether each packet must be readable without those before it, because
            packets may be lost or read twice.
        edge: Name of the edge, for messages.
    """

    port: Port[Sent, Received]
    send_codec: Codec
    receive_codec: Codec
    seed: int
    stats: SendStats | None = None
    _: KW_ONLY
    self_contained: bool = False
    edge: str = "this edge"

    def __post_init__(self) -> None:
        self._encoders: list[Encoder] = []
        self._local_decoders: list[Decoder] = []  # decode what was sent, to measure the error
        # A decoder that remembers something has to see every packet, unless each has it all.
        remembers = self.send_codec.decoder().state_dict() is not None
        self._decodes_all = remembers and not self.self_contained
        self._decoders: list[Decoder] = []

    def send(self, packet: Sent) -> None:
        """Send a packet with its values encoded.

        Raises:
            OptionError: The codec cannot encode values of these shapes.
        """
        if packet.skipped:
            self.port.send(packet)
            return

        # Choose what is encoded, each position by its encoder.
        values = tensors(packet.values)
        flags = packet.exact or (False,) * len(values)
        pairs = zip(values, flags, strict=True)
        floating = [(tensor, exact) for tensor, exact in pairs if tensor.is_floating_point()]
        plain = [tensor for tensor, _ in floating]
        while len(self._encoders) < len(plain):
            self._encoders.append(self._build_encoder())
            self._local_decoders.append(self.send_codec.decoder())

        # Encode, and measure what is saved and lost.
        try:
            encoded = [
                tensor if exact else _encode(encoder, tensor)
                for encoder, (tensor, exact) in zip(self._encoders, floating, strict=False)
            ]
        except OptionError as error:
            raise OptionError(f"cannot encode what {self.edge} sends: {error}") from error
        if self.stats is not None:
            self._update_stats(self.stats, packet.batch, plain, encoded)

        # Send the codes instead of the values.
        # An empty tensor keeps the position of one that is encoded.
        structure = map_tensors(
            lambda t: t.new_empty(0) if t.is_floating_point() else t, packet.values
        )
        content: Any = (structure, encoded)
        self.port.send(packet.with_values(content))

    def receive(self, batch: int) -> Received:
        """Receive the packet of a batch with its values decoded."""
        packet = self.port.receive(batch)
        if packet.skipped:
            return packet
        values: Any = packet.values
        structure, encoded = values
        while len(self._decoders) < len(encoded):
            self._decoders.append(self.receive_codec.decoder())
        decoded = iter(
            _decode(decoder, codes)
            for decoder, codes in zip(self._decoders, encoded, strict=False)
        )

        def fill(tensor: Tensor) -> Tensor:
            return next(decoded) if tensor.is_floating_point() else tensor

        return packet.with_values(map_tensors(fill, structure))

    def state_dict(self) -> Tree:
        """Return the encoded packets that were not yet taken, and the state of the codecs."""
        return {
            "port": self.port.state_dict(),
            "encoders": [encoder.state_dict() for encoder in self._encoders],
            "proofs": [decoder.state_dict() for decoder in self._local_decoders],
            "decoders": [decoder.state_dict() for decoder in self._decoders],
        }

    def load_state_dict(self, state: Tree) -> None:
        """Send the packets of a state again, and continue with its encoders and decoders."""
        self.port.load_state_dict(state["port"])
        for encoder_state in state["encoders"]:
            self._encoders.append(self._build_encoder())
            self._encoders[-1].load_state_dict(encoder_state)
        for decoders, codec, decoder_states in (
            (self._local_decoders, self.send_codec, state["proofs"]),
            (self._decoders, self.receive_codec, state["decoders"]),
        ):
            for decoder_state in decoder_states:
                decoders.append(codec.decoder())
                decoders[-1].load_state_dict(decoder_state)

    def _build_encoder(self) -> Encoder:
        return self.send_codec.encoder(
            self.seed + len(self._encoders), self_contained=self.self_contained
        )

    def _update_stats(
        self, stats: SendStats, batch: int, plain: list[Tensor], encoded: list[Tree]
    ) -> None:
        stats.plain_bytes += sum(tensor.nbytes for tensor in plain)
        stats.encoded_bytes += sum(tensor.nbytes for tensor in tensors(encoded))
        measures = batch % MEASURE_EVERY == 0 and bool(plain)
        if not (measures or self._decodes_all):
            return
        decoded = [
            _decode(decoder, codes)
            for decoder, codes in zip(self._local_decoders, encoded, strict=False)
        ]
        if measures:
            # Those that are sent as they are would hide the error of the others.
            changed = [
                (before.float(), after.float())
                for before, after, codes in zip(plain, decoded, encoded, strict=True)
                if not isinstance(codes, Tensor)
            ]
            lost = [before - after for before, after in changed]
            stats.error = _norm(lost) / (_norm([before for before, _ in changed]) or 1.0)
            if isinstance(self.send_codec, VQ):
                stats.perplexity = _perplexity(encoded)


def _encode(encoder: Encoder, tensor: Tensor) -> Tree:
    """Return what is sent in place of a tensor: the tensor itself if it cannot be encoded.

    Raises:
        OptionError: The codec does not fit the tensor, or encodes it as another tensor.
    """
    if not tensor.numel():
        return tensor
    try:
        codes = encoder.encode(tensor)
    except NonFiniteError:
        # A stage has refused all that a training turned infinite; this is meant to be.
        return tensor
    if isinstance(codes, Tensor) and codes is not tensor:
        raise OptionError(
            "its codec encodes a tensor as another one, which would be received as it is; "
            "return a list such as [codes] from encode"
        )
    return codes


def _decode(decoder: Decoder, encoded: Tree) -> Tensor:
    return encoded if isinstance(encoded, Tensor) else decoder.decode(encoded)


def _norm(parts: list[Tensor]) -> float:
    return math.hypot(*(float(torch.linalg.vector_norm(part)) for part in parts))


def _perplexity(encoded: list[Tree]) -> float | None:
    """Return the exponential of the entropy of the indices, mean over all codebooks."""
    perplexities = [
        math.exp(float(torch.special.entr(row.unique(return_counts=True)[1] / len(row)).sum()))
        for codes in encoded
        if not isinstance(codes, Tensor)
        for row in codes["indices"]
    ]
    return sum(perplexities) / len(perplexities) if perplexities else None

"""Vector quantization: vectors as indices into a codebook that is learned while they are sent.

Product quantization: the channels are divided into groups, each with its own codebook, and
a group of channels at one position is sent as one index. The sender owns the codebooks, moves
them towards what it sends, and sends them along when they have changed.

Quantizing activations between decoupled stages in this way, online, is from arXiv 2106.06401,
whose text gives neither codebook sizes nor rates. The layout, the initialisation, the reseeding
of unused codes, the versions and the defaults are our own; codebooks as moving averages of
counts and sums are from van den Oord et al., arXiv 1711.00937, appendix A.1.
"""

# Shapes: G groups, P vectors in each, K codes of a group, D channels of a group, C = G D.

from dataclasses import dataclass

import torch
from torch import Tensor

from hocket.codecs.codec import Codec, Decoder, Encoder
from hocket.codecs.stateless import Exact, require_finite
from hocket.distributed.wire import parse_dtype
from hocket.errors import OptionError, PacketError, raise_problems
from hocket.options.hints import wrong_fields
from hocket.options.ranges import Range, out_of_range
from hocket.tree import Tree

MAX_CODES = 2**15
"""Number of codes that a signed index of two bytes can tell apart."""
CHUNK = 2**22
"""Number of distances that are computed at a time."""
KMEANS_ROUNDS = 5
"""Rounds of k-means on the first batch."""
UNUSED = 1.0
"""A code that is used for fewer vectors than this, on average, moves to another vector."""


@dataclass(frozen=True)
class VQ:
    """Product quantization with codebooks that learn from what is sent.

    Args:
        groups: Number of groups G of channels; None to derive it from ``width``.
        width: Channels D of a group, if ``groups`` is None; a tensor with fewer channels is one
            group.
        codes: Number of codes K of each group; indices take one byte up to 256, else two.
        decay: Factor of a codebook's moving averages with every batch that it learns from; 1
            leaves it as it was after the first batch.
        every: Learn from every n-th batch.

    Raises:
        OptionError: An option is of a wrong type or out of its range.
    """

    groups: int | None = None
    codes: int = 256
    decay: float = 0.99
    every: int = 1
    width: int = 8
    biases_gradients = True

    def __post_init__(self) -> None:
        ranges = {
            "groups": Range(least=1),
            "codes": Range(least=2, most=MAX_CODES),
            "decay": Range(above=0, most=1),
            "every": Range(least=1),
            "width": Range(least=1),
        }
        problems = wrong_fields(self) + out_of_range(self, ranges)
        raise_problems(OptionError, "invalid options of vq", problems)

    @property
    def gradients(self) -> Codec:
        """Exact: errors of gradients add up over batches, errors of activations do not."""
        return Exact()

    def encoder(self, seed: int, *, self_contained: bool = False) -> Encoder:
        """Build an encoder whose codebooks are initialised from its first batch."""
        return _VQEncoder(self, seed, self_contained=self_contained)

    def decoder(self) -> Decoder:
        """Build a decoder that knows no codebook yet."""
        return _VQDecoder()

    def group_count(self, channels: int) -> int:
        """Return the number of groups of a tensor with this number of channels.

        Raises:
            OptionError: The number of channels is not a multiple of the number of groups.
        """
        groups = self.groups or max(1, channels // self.width)
        if channels % groups:
            divisors = [n for n in range(1, channels + 1) if channels % n == 0]
            raise OptionError(
                f"vq cannot divide {channels} channels into {groups} groups; give groups that "
                f"divide them: {', '.join(map(str, divisors))}"
            )
        return groups


class _VQEncoder:
    """Encoder that owns the codebooks and learns them."""

    def __init__(self, codec: VQ, seed: int, *, self_contained: bool) -> None:
        self._codec = codec
        self._self_contained = self_contained
        self._generator = torch.Generator().manual_seed(seed)
        self._books: Tensor | None = None  # (G, K, D)
        self._counts = self._sums = torch.empty(0)  # (G, K), (G, K, D): moving averages
        self._version = 0
        self._sent = -1
        self._batches = 0

    def encode(self, tensor: Tensor) -> Tree:
        """Return the indices, the tensor's form, and the codebooks if they have changed.

        Raises:
            OptionError: The tensor has fewer than two dimensions.
        """
        require_finite(tensor.to(torch.float32).abs().amax())
        if tensor.dim() < 2:
            raise OptionError(
                f"vq needs batches of vectors or maps, but got a tensor of shape "
                f"{tuple(tensor.shape)}; choose another codec"
            )

        # Vectors of the tensor, by group: of maps (B, C, H, W) the channels come last.
        last = tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor
        channels = last.shape[-1]
        groups = self._codec.group_count(channels)
        rows = last.reshape(-1, groups, channels // groups)
        vectors = rows.transpose(0, 1).to(torch.float32).contiguous()

        # The nearest code of each, and what else the decoder needs.
        if self._books is None:
            self._books = self._initialise(vectors)
        books = self._books
        indices = nearest_codes(vectors, books)
        encoded = {
            "indices": indices.to(torch.uint8 if self._codec.codes <= 256 else torch.int16),
            "version": self._version,
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype),
            # Strides of a copy, which has no gaps.
            "stride": list(torch.empty_like(tensor, device="meta").stride()),
        }
        if self._self_contained or self._sent != self._version:
            encoded["books"] = books
            self._sent = self._version

        # Learn from the batch, once it is encoded.
        self._batches += 1
        if self._codec.decay < 1 and self._batches % self._codec.every == 0:
            self._learn(vectors, indices)
        return encoded

    def _initialise(self, vectors: Tensor) -> Tensor:
        """Return codebooks (G, K, D) for the first batch, by k-means.

        If a group has at most K distinct vectors (G, P, D), they are its codes.

        Raises:
            OptionError: The batch has fewer vectors than there are codes.
        """
        groups, count, width = vectors.shape
        codes = self._codec.codes
        if count < codes:
            raise OptionError(
                f"vq needs {codes} codes, but the first batch has only {count} vectors in each "
                "group; use larger batches or fewer codes"
            )

        # Begin with vectors of the batch, each once.
        books = vectors.new_empty(groups, codes, width)
        has_few = []
        for book, group_vectors in zip(books, vectors, strict=True):
            distinct = group_vectors.unique(dim=0)
            has_few.append(len(distinct) <= codes)
            chosen = distinct[self._draw(len(distinct), min(codes, len(distinct)))]
            book[: len(chosen)] = chosen
            book[len(chosen) :] = chosen[0]
        # With a code for each vector k-means would only add rounding errors.
        exact = torch.tensor(has_few, device=books.device)[:, None, None]

        # Move each code to the mean of its vectors, some times.
        for _ in range(KMEANS_ROUNDS):
            counts, sums = _counts_and_sums(vectors, nearest_codes(vectors, books), codes)
            means = sums / counts.clamp(min=1).unsqueeze(-1)
            books = torch.where(exact | (counts == 0).unsqueeze(-1), books, means)
        self._counts, self._sums = _counts_and_sums(
            vectors, nearest_codes(vectors, books), codes
        )
        return books

    def _learn(self, vectors: Tensor, indices: Tensor) -> None:
        """Update the moving averages, and move unused codes to vectors of this batch."""
        assert self._books is not None
        decay = self._codec.decay
        counts, sums = _counts_and_sums(vectors, indices, self._codec.codes)
        self._counts = decay * self._counts + (1 - decay) * counts
        self._sums = decay * self._sums + (1 - decay) * sums
        books = self._sums / self._counts.clamp(min=UNUSED).unsqueeze(-1)
        for group, code in (self._counts < UNUSED).nonzero().tolist():
            (index,) = self._draw(vectors.shape[1], 1)
            books[group, code] = vectors[group, index]
            self._counts[group, code] = UNUSED
            self._sums[group, code] = UNUSED * books[group, code]
        self._books = books
        self._version += 1

    def state_dict(self) -> Tree:
        return {
            "chance": self._generator.get_state(),
            "books": self._books,
            "counts": self._counts,
            "sums": self._sums,
            "version": self._version,
            "sent": self._sent,
            "batches": self._batches,
        }

    def load_state_dict(self, state: Tree) -> None:
        self._generator.set_state(state["chance"].cpu())
        self._books = state["books"]
        self._counts, self._sums = state["counts"], state["sums"]
        self._version, self._sent = state["version"], state["sent"]
        self._batches = state["batches"]

    def _draw(self, count: int, number: int) -> Tensor:
        """Return this number of different random indices below ``count``."""
        return torch.randperm(count, generator=self._generator, device="cpu")[:number]


class _VQDecoder:
    """Decoder with the last codebooks that have arrived, by their version."""

    def __init__(self) -> None:
        self._books: dict[int, Tensor] = {}

    def state_dict(self) -> Tree:
        return dict(self._books)

    def load_state_dict(self, state: Tree) -> None:
        self._books = dict(state)

    def decode(self, encoded: Tree) -> Tensor:
        """Return the codes of the indices, in the shape of the tensor.

        Raises:
            PacketError: The packet needs codebooks that have not arrived.
        """
        # The codebooks of the packet, which may bring them.
        version = encoded["version"]
        books: Tensor | None = encoded.get("books", self._books.get(version))
        if books is None:
            known = ", ".join(map(str, self._books)) or "none"
            raise PacketError(
                f"a packet needs version {version} of the codebooks, which has not arrived; "
                f"known are {known}"
            )
        self._books = {version: books}

        # The code of each index.
        indices = encoded["indices"]
        groups, _, width = books.shape
        wide = indices.to(torch.int64).unsqueeze(-1).expand(-1, -1, width)
        vectors = books.gather(1, wide)

        # Codes in the shape and the strides of the tensor.
        shape, stride = encoded["shape"], encoded["stride"]
        dtype = parse_dtype(encoded["dtype"].removeprefix("torch."))
        flat = vectors.transpose(0, 1).reshape(-1, groups * width).to(dtype)
        if len(shape) == 4:
            images, channels, *sides = shape
            decoded = flat.reshape(images, *sides, channels).permute(0, 3, 1, 2)
        else:
            decoded = flat.reshape(shape)
        if list(decoded.stride()) == stride:
            return decoded
        return decoded.new_empty_strided(shape, stride).copy_(decoded)


def nearest_codes(vectors: Tensor, books: Tensor) -> Tensor:
    """Return the indices (G, P) of the codes nearest to the vectors; the first of equals.

    Args:
        vectors: Vectors (G, P, D).
        books: Codebooks (G, K, D).

    >>> nearest_codes(torch.tensor([[[0.9], [0.1]]]), torch.tensor([[[0.0], [1.0]]]))
    tensor([[1, 0]])
    """
    # Distances do not depend on the origin, but their rounding errors do.
    origin = books.mean(1, keepdim=True)
    centred = books - origin
    squares = centred.square().sum(-1).unsqueeze(1)
    transposed = centred.transpose(1, 2)
    size = max(1, CHUNK // (books.shape[0] * books.shape[1]))
    indices = [
        torch.baddbmm(squares, part - origin, transposed, alpha=-2).argmin(-1)
        for part in vectors.split(size, dim=1)
    ]
    return torch.cat(indices, dim=1)


def _counts_and_sums(vectors: Tensor, indices: Tensor, codes: int) -> tuple[Tensor, Tensor]:
    """Return the number of vectors of each code (G, K), and their sums (G, K, D)."""
    groups, _, width = vectors.shape
    counts = vectors.new_zeros(groups, codes)
    counts.scatter_add_(1, indices, torch.ones_like(indices, dtype=counts.dtype))
    sums = vectors.new_zeros(groups, codes, width)
    sums.scatter_add_(1, indices.unsqueeze(-1).expand(-1, -1, width), vectors)
    return counts, sums

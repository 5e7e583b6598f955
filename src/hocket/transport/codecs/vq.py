"""Vectors as numbers of the nearest ones in a codebook that is learned while they are sent.

Product quantization: the channels are cut into groups, each with a codebook of its own, and
what travels for a group of channels at one place is one index. The sender owns the codebooks,
moves them towards what it sends, and sends them along when they have changed.

That activations between decoupled stages are quantized so, online, is arXiv 2106.06401, whose
text gives neither codebook sizes nor rates. Ours are the layout, the initialisation, the
reseeding of unused codes, versions, and the defaults; codebooks as moving averages of counts
and sums are van den Oord et al., arXiv 1711.00937, appendix A.1.
"""

# Shapes: G groups, P vectors in each, K codes of a group, D channels of a group, C = G D.

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hocket.errors import OptionError, PacketError, listed
from hocket.transport.codecs.codec import Codec, Decoder, Encoder, Exact
from hocket.transport.codecs.finite import require_finite
from hocket.tree import Tree

LARGEST = 2**15
"""As many codes as two bytes can number."""
CHUNK = 2**22
"""Distances that are held at a time."""
ROUNDS = 5
"""Of k-means on the first batch."""
UNUSED = 1.0
"""A code that stands for fewer vectors than this, on average, is put somewhere else."""
KEPT = 4
"""Versions of the codebooks that a receiver remembers."""


@dataclass(frozen=True)
class VQ:
    """Product quantization with codebooks that learn from what is sent.

    Args:
        groups: Of channels; None for as many as ``width`` makes.
        width: Channels of a group, where ``groups`` is not given; a tensor with fewer channels
            is one group.
        codes: K, of each group; up to 256 take one byte each, more take two.
        decay: What a codebook keeps of its averages with every batch that it learns from; 1
            leaves it as it was after the first one.
        every: Learn from every n-th batch.

    Raises:
        OptionError: An option is out of its range.
    """

    groups: int | None = None
    codes: int = 256
    decay: float = 0.99
    every: int = 1
    width: int = 8
    biases = True

    def __post_init__(self) -> None:
        problems = []
        if self.groups is not None and self.groups < 1:
            problems.append(f"groups is {self.groups}; use 1 or more")
        if self.width < 1:
            problems.append(f"width is {self.width}; use 1 or more")
        if not 2 <= self.codes <= LARGEST:
            problems.append(
                f"codes is {self.codes}; use 2 to {LARGEST}, which fit into two bytes"
            )
        if not 0 < self.decay <= 1:
            problems.append(f"decay is {self.decay}; use a number in (0, 1]")
        if self.every < 1:
            problems.append(f"every is {self.every}; use 1 or more")
        if problems:
            raise OptionError(listed("this vector quantization is impossible", problems))

    @property
    def gradients(self) -> Codec:
        """Exact: an error in what is sent ahead is one of a batch, in a gradient it adds up."""
        return Exact()

    def encoder(self, seed: int, *, alone: bool = False) -> Encoder:
        """One whose codebooks begin with its first batch."""
        return _Quantizer(self, seed, alone=alone)

    def decoder(self) -> Decoder:
        """One that knows no codebook yet."""
        return _Books()

    def group_count(self, channels: int) -> int:
        """How many groups so many channels have.

        Raises:
            OptionError: They cannot be divided so.
        """
        groups = self.groups or max(1, channels // self.width)
        if channels % groups:
            raise OptionError(
                f"vq cannot divide {channels} channels into {groups} groups; give groups that "
                f"divide them: {', '.join(map(str, _divisors(channels)))}"
            )
        return groups


class _Quantizer:
    """The sender's side."""

    def __init__(self, choice: VQ, seed: int, *, alone: bool) -> None:
        self._choice = choice
        self._alone = alone
        self._chance = torch.Generator().manual_seed(seed)
        self._books: Tensor | None = None  # (G, K, D)
        self._counts = self._sums = torch.empty(0)  # (G, K), (G, K, D): moving averages
        self._version = 0
        self._sent = -1
        self._batches = 0

    def encode(self, tensor: Tensor) -> Tree:
        """Indices, what is needed to undo it, and the codebooks if they have changed."""
        vectors = _vectors(tensor, self._choice.group_count(_channels(tensor)))
        require_finite(tensor.abs().amax())
        if self._books is None:
            self._books = self._first(vectors)
        books = self._books
        indices = nearest(vectors, books)
        # A view of channels_last memory is one when it is made again.
        last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
        coded = {
            "indices": indices.to(torch.uint8 if self._choice.codes <= 256 else torch.int16),
            "version": self._version,
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype),
            "channels_last": last,
        }
        if self._alone or self._sent != self._version:
            coded["books"] = books
            self._sent = self._version
        self._batches += 1
        if self._choice.decay < 1 and self._batches % self._choice.every == 0:
            self._learn(vectors, indices)
        return coded

    def _first(self, vectors: Tensor) -> Tensor:
        """Codebooks for the first batch: its own vectors if they are few, else k-means.

        Raises:
            OptionError: It has fewer vectors than there are codes.
        """
        groups, count, width = vectors.shape
        codes = self._choice.codes
        if count < codes:
            raise OptionError(
                f"vq wants {codes} codes, but the first batch has only {count} vectors in each "
                "group; use larger batches or fewer codes"
            )
        books = vectors.new_empty(groups, codes, width)
        few = []
        for book, own in zip(books, vectors, strict=True):
            distinct = own.unique(dim=0)
            few.append(len(distinct) <= codes)
            chosen = distinct[self._drawn(len(distinct), min(codes, len(distinct)))]
            book[: len(chosen)] = chosen
            book[len(chosen) :] = chosen[0]
        # With a code for each vector there is nothing to improve, and rounding would harm.
        exact = torch.tensor(few, device=books.device)[:, None, None]
        for _ in range(ROUNDS):
            counts, sums = _totals(vectors, nearest(vectors, books), codes)
            means = sums / counts.clamp(min=1).unsqueeze(-1)
            books = torch.where(exact | (counts == 0).unsqueeze(-1), books, means)
        self._counts, self._sums = _totals(vectors, nearest(vectors, books), codes)
        return books

    def _learn(self, vectors: Tensor, indices: Tensor) -> None:
        """Move the averages, and codes that stand for nothing to where there is something."""
        assert self._books is not None
        keep = self._choice.decay
        counts, sums = _totals(vectors, indices, self._choice.codes)
        self._counts = keep * self._counts + (1 - keep) * counts
        self._sums = keep * self._sums + (1 - keep) * sums
        books = self._sums / self._counts.clamp(min=UNUSED).unsqueeze(-1)
        for group, code in (self._counts < UNUSED).nonzero().tolist():
            (place,) = self._drawn(vectors.shape[1], 1)
            books[group, code] = vectors[group, place]
            self._counts[group, code] = UNUSED
            self._sums[group, code] = UNUSED * books[group, code]
        self._books = books
        self._version += 1

    def state_dict(self) -> Tree:
        """Codebooks, averages, counters, and the chance by which unused codes are put."""
        return {
            "chance": self._chance.get_state(),
            "books": self._books,
            "counts": self._counts,
            "sums": self._sums,
            "version": self._version,
            "sent": self._sent,
            "batches": self._batches,
        }

    def load_state_dict(self, state: Tree) -> None:
        """Go on from what another encoder had learnt."""
        self._chance.set_state(state["chance"].cpu())
        self._books = state["books"]
        self._counts, self._sums = state["counts"], state["sums"]
        self._version, self._sent = state["version"], state["sent"]
        self._batches = state["batches"]

    def _drawn(self, count: int, number: int) -> Tensor:
        return torch.randperm(count, generator=self._chance)[:number]


class _Books:
    """The receiver's side: the codebooks that have come."""

    def __init__(self) -> None:
        self._books: dict[int, Tensor] = {}

    def state_dict(self) -> Tree:
        """The codebooks by version."""
        return dict(self._books)

    def load_state_dict(self, state: Tree) -> None:
        """Go on from the codebooks of another one."""
        self._books = dict(state)

    def decode(self, coded: Tree) -> Tensor:
        """The codes that the indices stand for."""
        version = coded["version"]
        if "books" in coded:
            self._books[version] = coded["books"]
            while len(self._books) > KEPT:
                del self._books[min(self._books)]
        elif version not in self._books:
            known = ", ".join(map(str, self._books)) or "none"
            raise PacketError(
                f"a packet wants version {version} of the codebooks, which is not there; known "
                f"are {known}"
            )
        # Its own, where it has them: an old packet that is read again has old ones.
        books = coded["books"] if "books" in coded else self._books[version]
        indices = coded["indices"]
        groups, _, width = books.shape
        wide = indices.to(torch.int64).unsqueeze(-1).expand(-1, -1, width)
        vectors = books.gather(1, wide)
        shape = coded["shape"]
        dtype = getattr(torch, coded["dtype"].removeprefix("torch."))
        flat = vectors.transpose(0, 1).reshape(-1, groups * width).to(dtype)
        if len(shape) != 4:
            return flat.reshape(shape)
        images, channels, *sides = shape
        found = flat.reshape(images, *sides, channels).permute(0, 3, 1, 2)
        return found if coded["channels_last"] else found.contiguous()


def nearest(vectors: Tensor, books: Tensor) -> Tensor:
    """The numbers (G, P) of the codes (G, K, D) nearest to vectors (G, P, D); first of equals.

    >>> nearest(torch.tensor([[[0.9], [0.1]]]), torch.tensor([[[0.0], [1.0]]]))
    tensor([[1, 0]])
    """
    squares = books.square().sum(-1).unsqueeze(1)
    turned = books.transpose(1, 2)
    size = max(1, CHUNK // (books.shape[0] * books.shape[1]))
    return torch.cat(
        [
            torch.baddbmm(squares, part, turned, alpha=-2).argmin(-1)
            for part in vectors.split(size, dim=1)
        ],
        dim=1,
    )


def _totals(vectors: Tensor, indices: Tensor, codes: int) -> tuple[Tensor, Tensor]:
    """How many vectors each code stands for (G, K), and their sums (G, K, D)."""
    groups, _, width = vectors.shape
    counts = vectors.new_zeros(groups, codes)
    counts.scatter_add_(1, indices, torch.ones_like(indices, dtype=counts.dtype))
    sums = vectors.new_zeros(groups, codes, width)
    sums.scatter_add_(1, indices.unsqueeze(-1).expand(-1, -1, width), vectors)
    return counts, sums


def _channels(tensor: Tensor) -> int:
    """Of maps (B, C, H, W) the second size, of all else the last."""
    if tensor.dim() < 2:
        raise OptionError(
            f"vq needs batches of vectors or maps, and got a tensor of shape "
            f"{tuple(tensor.shape)}; choose another codec"
        )
    return tensor.shape[1] if tensor.dim() == 4 else tensor.shape[-1]


def _vectors(tensor: Tensor, groups: int) -> Tensor:
    """The vectors (G, P, D) of a tensor, in float32."""
    channels = _channels(tensor)
    last = tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor
    rows = last.reshape(-1, groups, channels // groups)
    return rows.transpose(0, 1).to(torch.float32).contiguous()


def _divisors(number: int) -> Iterator[int]:
    return (n for n in range(1, number + 1) if number % n == 0)

"""How a packet becomes bytes: a header in JSON, and the tensors' memory as it lies.

Strides are kept, so that a channels_last tensor arrives as one. Nothing is pickled: what comes
over a wire is data, whoever wrote it. Checksums tell what was damaged on its way, not what
somebody has forged.
"""

import json
import math
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hocket.errors import PacketError, TransitError
from hocket.tree import Tree


def encode_tree(tree: Tree, found: list[Tensor]) -> Any:
    """The structure as JSON; its tensors are appended to ``found`` and named by their place.

    Raises:
        PacketError: A container or a leaf is of a type that cannot cross to another process.

    >>> found = []
    >>> encode((torch.ones(2), {"scale": 0.5}), found), len(found)
    ({'tuple': [{'tensor': 0}, {'dict': [['scale', 0.5]]}]}, 1)
    """
    if isinstance(tree, Tensor):
        if tree.layout != torch.strided or tree.is_quantized:
            raise PacketError(
                f"a tensor of layout {tree.layout} and type {tree.dtype} cannot cross to "
                "another process; let the stage give dense tensors"
            )
        found.append(tree)
        return {"tensor": len(found) - 1}
    if type(tree) in (tuple, list):
        return {type(tree).__name__: [encode_tree(item, found) for item in tree]}
    if type(tree) is dict:
        return {"dict": [[_key(key), encode_tree(item, found)] for key, item in tree.items()]}
    if tree is None or type(tree) in (bool, int, float, str):
        return tree
    raise PacketError(
        f"a {type(tree).__name__} cannot cross to another process; let the stage give tensors, "
        "numbers, None, or tuples, lists and dicts of them"
    )


def _key(key: object) -> object:
    if type(key) not in (str, int):
        raise PacketError(
            f"the key {key!r} of a dict cannot cross to another process; use a string"
        )
    return key


def decode_tree(spec: Any, found: Sequence[Tensor]) -> Tree:
    """The structure whose JSON this is, with its tensors."""
    if not isinstance(spec, dict):
        return spec
    ((kind, inside),) = spec.items()
    if kind == "tensor":
        return found[inside]
    if kind == "dict":
        return {key: decode_tree(item, found) for key, item in inside}
    items = [decode_tree(item, found) for item in inside]
    return tuple(items) if kind == "tuple" else items


def tensor_spec(tensor: Tensor) -> list[Any]:
    """What the receiver must know to make room for a tensor."""
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), list(tensor.stride())]


CPU = torch.device("cpu")


def to_dense(tensor: Tensor, device: torch.device = CPU) -> Tensor:
    """The tensor, or a copy of it, on a device, every element once and without gaps."""
    # A conjugate may exist as a mere mark on memory that holds something else.
    own = tensor.detach().to(device).resolve_conj().resolve_neg()
    # A copy of a tensor with gaps or repeated elements takes strides in the same order.
    return own if _gapless(own) else own.clone()


def _gapless(tensor: Tensor) -> bool:
    steps = sorted(
        (stride, size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    expected = 1
    for stride, size in steps:
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def empty_tensor(spec: Sequence[Any], device: torch.device = CPU) -> Tensor:
    """Room for a tensor of this form.

    Raises:
        PacketError: There is no such type of tensor.
    """
    name, shape, stride = spec
    return torch.empty(math.prod(shape), dtype=dtype(name), device=device).as_strided(
        shape, stride
    )


def dtype(name: str) -> torch.dtype:
    """The type of this name.

    Raises:
        PacketError: There is none.
    """
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise PacketError(f"a packet has a tensor of the unknown type {name!r}")
    return found


def tensor_bytes(tensor: Tensor) -> Tensor:
    """The bytes of a gapless tensor, as they lie."""
    flat = tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
    return flat.view(torch.uint8)


def checksum(tensor: Tensor) -> int | None:
    """CRC-32 of a gapless tensor's bytes; None on a GPU, whose memory it would have to copy."""
    return (
        zlib.crc32(tensor_bytes(tensor).numpy().data) if tensor.device.type == "cpu" else None
    )


PREFIX = 1024
"""Bytes of a message's first part, which holds as much of the header as fits."""
FRAME = 12
"""Those before it: the first part's checksum, the header's length, the rest's checksum."""


def encode_header(header: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """The header as a first part of fixed size, and the rest if it is longer."""
    text = json.dumps(header).encode()
    rest = bytearray(text[PREFIX - FRAME :])
    first = bytearray(PREFIX)
    first[4:8] = _number(len(text))
    first[8:FRAME] = _number(zlib.crc32(rest))
    first[FRAME : FRAME + len(text)] = text[: PREFIX - FRAME]
    first[:4] = _number(zlib.crc32(first[4:PREFIX]))
    return _bytes(first[:PREFIX]), _bytes(rest) if rest else None


def _number(value: int) -> bytes:
    return value.to_bytes(4, "big")


def _bytes(data: bytearray) -> Tensor:
    return torch.frombuffer(data, dtype=torch.uint8)


def remaining_bytes(first: Tensor) -> int:
    """How many bytes of a header follow its first part.

    Raises:
        TransitError: The first part is damaged.
    """
    data = first.numpy().tobytes()
    _require_intact(data[4:], data[:4])
    return max(0, int.from_bytes(data[4:8], "big") - (PREFIX - FRAME))


def decode_header(first: Tensor, rest: Tensor | None) -> dict[str, Any]:
    """The header that was written so.

    Raises:
        TransitError: It is damaged.
        PacketError: It is none.
    """
    data = first.numpy().tobytes()
    follows = rest.numpy().tobytes() if rest is not None else b""
    _require_intact(data[4:], data[:4])
    _require_intact(follows, data[8:FRAME])
    text = data[FRAME : FRAME + int.from_bytes(data[4:8], "big")] + follows
    try:
        header = json.loads(text)
    except ValueError as error:
        raise PacketError(f"a packet arrived whose header is no JSON ({error})") from error
    if not isinstance(header, dict):
        raise PacketError(f"a packet arrived whose header is no object ({text[:40]!r})")
    return header


def _require_intact(data: bytes, checksum: bytes) -> None:
    found, wanted = _number(zlib.crc32(data)).hex(), checksum.hex()
    if found != wanted:
        raise TransitError(
            f"a packet arrived with a damaged header: its checksum is {found}, and was {wanted}"
        )

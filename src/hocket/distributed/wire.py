"""Wire format of a packet: a header in JSON, and the memory of the tensors unchanged.

Strides are kept, so that a channels_last tensor arrives as one. Nothing is pickled: a message
is data only, whoever wrote it. Checksums detect damage in transit, not forgery.
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


def encode_tree(tree: Tree, tensors: list[Tensor]) -> Any:
    """Return the structure of a tree as JSON, and append its tensors to a list.

    Args:
        tree: Nested tuples, lists and dicts of tensors, numbers, strings and None.
        tensors: List to append to; the structure refers to its items by their index.

    Raises:
        PacketError: A container or a leaf is of a type that cannot be sent.

    >>> tensors = []
    >>> encode_tree((torch.ones(2), {"scale": 0.5}), tensors), len(tensors)
    ({'tuple': [{'tensor': 0}, {'dict': [['scale', 0.5]]}]}, 1)
    """
    if isinstance(tree, Tensor):
        if tree.layout != torch.strided or tree.is_quantized:
            raise PacketError(
                f"a tensor of layout {tree.layout} and type {tree.dtype} cannot be sent to "
                "another process; let the stage return dense tensors"
            )
        tensors.append(tree)
        return {"tensor": len(tensors) - 1}
    if type(tree) in (tuple, list):
        return {type(tree).__name__: [encode_tree(item, tensors) for item in tree]}
    if type(tree) is dict:
        return {"dict": [[_key(key), encode_tree(item, tensors)] for key, item in tree.items()]}
    if tree is None or type(tree) in (bool, int, float, str):
        return tree
    raise PacketError(
        f"a {type(tree).__name__} cannot be sent to another process; let the stage return "
        "tensors, numbers, None, or tuples, lists and dicts of them"
    )


def _key(key: object) -> object:
    if type(key) not in (str, int):
        raise PacketError(
            f"the key {key!r} of a dict cannot be sent to another process; use a string"
        )
    return key


def decode_tree(spec: Any, tensors: Sequence[Tensor]) -> Tree:
    """Return the tree of a structure that ``encode_tree`` has returned, with its tensors."""
    if not isinstance(spec, dict):
        return spec
    ((kind, inside),) = spec.items()
    if kind == "tensor":
        return tensors[inside]
    if kind == "dict":
        return {key: decode_tree(item, tensors) for key, item in inside}
    items = [decode_tree(item, tensors) for item in inside]
    return tuple(items) if kind == "tuple" else items


def tensor_spec(tensor: Tensor) -> list[Any]:
    """Return dtype, shape and strides, from which the receiver allocates a tensor."""
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), list(tensor.stride())]


CPU = torch.device("cpu")


def to_dense(tensor: Tensor, device: torch.device = CPU) -> Tensor:
    """Return a tensor (...) on a device whose memory has every element once and no gaps.

    Its strides are in the same order; it is a copy only if it has to be.
    """
    # A conjugate may exist as a mere flag on memory that holds something else.
    dense = tensor.detach().to(device).resolve_conj().resolve_neg()
    # A copy of a tensor with gaps or repeated elements has strides in the same order.
    return dense if _is_dense(dense) else dense.clone()


def _is_dense(tensor: Tensor) -> bool:
    dimensions = sorted(
        (stride, size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    expected = 1
    for stride, size in dimensions:
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def empty_tensor(spec: Sequence[Any], device: torch.device = CPU) -> Tensor:
    """Allocate a tensor (...) for the result of ``tensor_spec``.

    Raises:
        PacketError: There is no such dtype.
    """
    name, shape, stride = spec
    return torch.empty(math.prod(shape), dtype=parse_dtype(name), device=device).as_strided(
        shape, stride
    )


def parse_dtype(name: str) -> torch.dtype:
    """Return the dtype of a name such as ``float32``.

    Raises:
        PacketError: There is none.
    """
    value = getattr(torch, name, None)
    if not isinstance(value, torch.dtype):
        raise PacketError(f"a packet has a tensor of the unknown type {name!r}")
    return value


def tensor_bytes(tensor: Tensor) -> Tensor:
    """Return the memory of a dense tensor as bytes (N,) of type uint8, without a copy."""
    flat = tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
    return flat.view(torch.uint8)


def checksum(tensor: Tensor) -> int | None:
    """Return the CRC-32 of a dense tensor; None on a GPU, whose memory would be copied."""
    return (
        zlib.crc32(tensor_bytes(tensor).numpy().data) if tensor.device.type == "cpu" else None
    )


HEADER_PREFIX_BYTES = 1024
"""Size of the first part of a message, which holds as much of the header as fits."""
FRAME_BYTES = 12
"""Bytes before the header: two checksums, of the first part and of the rest, and its length."""


def encode_header(header: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """Encode a header as a first part (1024,) and the rest (N,), which is None if all fits."""
    text = json.dumps(header).encode()
    rest = bytearray(text[HEADER_PREFIX_BYTES - FRAME_BYTES :])
    first = bytearray(HEADER_PREFIX_BYTES)
    first[4:8] = _to_uint32(len(text))
    first[8:FRAME_BYTES] = _to_uint32(zlib.crc32(rest))
    first[FRAME_BYTES : FRAME_BYTES + len(text)] = text[: HEADER_PREFIX_BYTES - FRAME_BYTES]
    first[:4] = _to_uint32(zlib.crc32(first[4:HEADER_PREFIX_BYTES]))
    return _to_tensor(first[:HEADER_PREFIX_BYTES]), _to_tensor(rest) if rest else None


def _to_uint32(value: int) -> bytes:
    return value.to_bytes(4, "big")


def _to_tensor(data: bytearray) -> Tensor:
    return torch.frombuffer(data, dtype=torch.uint8)


def remaining_bytes(first: Tensor) -> int:
    """Return the number of bytes of a header that follow its first part.

    Raises:
        TransitError: The first part is damaged.
    """
    data = first.numpy().tobytes()
    _check_intact(data[4:], data[:4])
    return max(0, int.from_bytes(data[4:8], "big") - (HEADER_PREFIX_BYTES - FRAME_BYTES))


def decode_header(first: Tensor, rest: Tensor | None) -> dict[str, Any]:
    """Decode a header from its first part and the rest.

    Raises:
        TransitError: It is damaged.
        PacketError: It is not a JSON object.
    """
    data = first.numpy().tobytes()
    rest_bytes = rest.numpy().tobytes() if rest is not None else b""
    _check_intact(data[4:], data[:4])
    _check_intact(rest_bytes, data[8:FRAME_BYTES])
    text = data[FRAME_BYTES : FRAME_BYTES + int.from_bytes(data[4:8], "big")]
    text += rest_bytes
    try:
        header = json.loads(text)
    except ValueError as error:
        raise PacketError(f"a packet arrived whose header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise PacketError(f"a packet arrived whose header is not a JSON object ({text[:40]!r})")
    return header


def _check_intact(data: bytes, checksum: bytes) -> None:
    actual, expected = _to_uint32(zlib.crc32(data)).hex(), checksum.hex()
    if actual != expected:
        raise TransitError(
            f"a packet arrived with a damaged header: its checksum is {actual}, and was "
            f"{expected} when it was sent"
        )

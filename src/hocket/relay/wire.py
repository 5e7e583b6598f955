"""How a packet becomes bytes: a header in JSON, and the tensors' memory as it lies.

Strides are kept, so that a channels_last tensor arrives as one. Nothing is pickled: what comes
over a wire is data, whoever wrote it.
"""

import json
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hocket.errors import PacketError
from hocket.tree import Tree


def encode(tree: Tree, found: list[Tensor]) -> Any:
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
        return {type(tree).__name__: [encode(item, found) for item in tree]}
    if type(tree) is dict:
        return {"dict": [[_key(key), encode(item, found)] for key, item in tree.items()]}
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


def decode(spec: Any, found: Sequence[Tensor]) -> Tree:
    """The structure whose JSON this is, with its tensors."""
    if not isinstance(spec, dict):
        return spec
    ((kind, inside),) = spec.items()
    if kind == "tensor":
        return found[inside]
    if kind == "dict":
        return {key: decode(item, found) for key, item in inside}
    items = [decode(item, found) for item in inside]
    return tuple(items) if kind == "tuple" else items


def form(tensor: Tensor) -> list[Any]:
    """What the receiver must know to make room for a tensor."""
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), list(tensor.stride())]


CPU = torch.device("cpu")


def dense(tensor: Tensor, device: torch.device = CPU) -> Tensor:
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


def empty(spec: Sequence[Any], device: torch.device = CPU) -> Tensor:
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


def memory(tensor: Tensor) -> Tensor:
    """The bytes of a gapless tensor, as they lie."""
    flat = tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
    return flat.view(torch.uint8)


PREFIX = 1024
"""Bytes of a message's first part: the header's length, then as much of it as fits."""


def written(header: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """The header as a first part of fixed size, and the rest if it is longer."""
    text = json.dumps(header).encode()
    first = bytearray(PREFIX)
    first[:4] = len(text).to_bytes(4, "big")
    first[4 : 4 + len(text)] = text[: PREFIX - 4]
    rest = bytearray(text[PREFIX - 4 :])
    return _bytes(first[:PREFIX]), _bytes(rest) if rest else None


def _bytes(data: bytearray) -> Tensor:
    return torch.frombuffer(data, dtype=torch.uint8)


def remaining(first: Tensor) -> int:
    """How many bytes of a header follow its first part."""
    return max(0, int.from_bytes(bytes(first[:4].tolist()), "big") - (PREFIX - 4))


def read(first: Tensor, rest: Tensor | None) -> dict[str, Any]:
    """The header that was written so.

    Raises:
        PacketError: It is damaged.
    """
    data = first.numpy().tobytes()
    length = int.from_bytes(data[:4], "big")
    text = data[4 : 4 + length] + (rest.numpy().tobytes() if rest is not None else b"")
    try:
        header = json.loads(text)
    except ValueError as error:
        raise PacketError(f"a packet arrived with a damaged header ({error})") from error
    if not isinstance(header, dict):
        raise PacketError(f"a packet arrived with a damaged header ({text[:40]!r})")
    return header

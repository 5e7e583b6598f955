"""File of the weights of a network, which loads without Hocket."""

from io import BytesIO
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from hocket.errors import import_extra
from hocket.files import replace_atomically

SUFFIXES = (".pt", ".safetensors")
"""Endings of the files of weights, which name their formats."""


def import_safetensors() -> ModuleType:
    """Import the package safetensors, which is an extra.

    Raises:
        OptionError: It is not installed.
    """
    return import_extra("safetensors.torch", "safetensors", "weights_format 'safetensors'")


def save_weights(network: nn.Module, file: Path) -> None:
    """Write the weights under the network's own names, on the CPU.

    Args:
        network: The network.
        file: The file, whose ending names the format: .pt or .safetensors. The latter has
            copies of weights that share memory, and nothing but tensors.

    Raises:
        OSError: The file cannot be written.
    """
    state = network.state_dict()
    # A layer may keep other things than tensors (get_extra_state).
    weights = {n: v.cpu() if isinstance(v, Tensor) else v for n, v in state.items()}
    # In memory first, as writers of both formats hide why a disk refuses the bytes.
    stream = BytesIO()
    if file.suffix == ".safetensors":
        tensors = {n: v for n, v in weights.items() if isinstance(v, Tensor)}
        copies = {name: value.contiguous().clone() for name, value in tensors.items()}
        stream.write(import_safetensors().save(copies))
    else:
        torch.save(weights, stream)
    with replace_atomically(file) as unfinished:
        unfinished.write_bytes(stream.getbuffer())


def remove_other_formats(file: Path) -> None:
    """Remove older weights in other formats next to a file, if there is the file."""
    for suffix in SUFFIXES:
        if suffix != file.suffix and file.exists():
            file.with_suffix(suffix).unlink(missing_ok=True)

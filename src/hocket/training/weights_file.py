"""File of the weights of a network, which loads without Hocket."""

from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from hocket.errors import import_extra
from hocket.files import replace_atomically


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
            copies of weights that share memory.
    """
    weights = {name: value.cpu() for name, value in network.state_dict().items()}
    with replace_atomically(file) as unfinished:
        if file.suffix == ".safetensors":
            copies = {name: value.contiguous().clone() for name, value in weights.items()}
            import_safetensors().save_file(copies, unfinished)
        else:
            torch.save(weights, unfinished)

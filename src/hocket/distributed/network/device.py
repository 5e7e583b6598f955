"""Device of a process."""

import torch

from hocket.errors import OptionError


def parse_device(device: torch.device | str) -> torch.device:
    """Return a device, which may be given as text such as ``cuda:1``.

    Raises:
        OptionError: There is no such device, or PyTorch does not find it here.
    """
    try:
        parsed = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise OptionError(f"device is {device!r}; use one such as 'cpu' or 'cuda'") from error
    if parsed.type == "meta":
        raise OptionError("device is 'meta', whose tensors hold no numbers; build it on 'cpu'")
    for kind, backend in (("cuda", torch.cuda), ("mps", torch.backends.mps)):
        if parsed.type == kind and not backend.is_available():
            raise OptionError(f"device is {str(parsed)!r}, and PyTorch finds no GPU; use 'cpu'")
    if parsed.type == "cuda" and (parsed.index or 0) >= (count := torch.cuda.device_count()):
        raise OptionError(
            f"device is {str(parsed)!r}, and PyTorch finds {count} GPUs here; count from 0, or "
            "use 'cuda' for one of them"
        )
    return parsed


def assign_device(device: torch.device, local_rank: int, gpu_count: int) -> torch.device:
    """Return the device of a process; a GPU without a number gets the number of its local rank.

    Several processes share a GPU if there are fewer GPUs than processes.

    Args:
        device: The device that the user asked for.
        local_rank: Rank of the process on its machine.
        gpu_count: Number of GPUs of the machine.

    >>> assign_device(torch.device("cuda"), local_rank=5, gpu_count=4)
    device(type='cuda', index=1)
    >>> assign_device(torch.device("cuda:3"), local_rank=5, gpu_count=4)
    device(type='cuda', index=3)
    >>> assign_device(torch.device("cpu"), local_rank=5, gpu_count=0)
    device(type='cpu')
    """
    if device.type == "cuda" and device.index is None and gpu_count:
        return torch.device("cuda", local_rank % gpu_count)
    return device

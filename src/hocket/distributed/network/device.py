"""Device of a process."""

import torch


def assign_device(device: torch.device, local_rank: int, gpu_count: int) -> torch.device:
    """Return the device of a process; a GPU without a number gets its local rank.

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

"""State of the global generators of random numbers."""

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy
import torch


@contextmanager
def preserve_rng(devices: Iterable[torch.device] = ()) -> Iterator[None]:
    """Context manager that restores the generators of torch, NumPy and Python on exit.

    Args:
        devices: Devices that are used; those of the GPUs among them are restored as well.
    """
    gpus = [device for device in devices if device.type == "cuda"]
    with preserve_numpy_and_python(), torch.random.fork_rng(devices=gpus):
        yield


@contextmanager
def preserve_numpy_and_python() -> Iterator[None]:
    """Context manager that restores the generators of NumPy and Python on exit."""
    python, numpy_ = random.getstate(), numpy.random.get_state(legacy=False)
    try:
        yield
    finally:
        random.setstate(python)
        numpy.random.set_state(numpy_)


def numpy_and_python_state() -> object:
    """Return the state of the generators of NumPy and Python, to be compared with another."""
    of_numpy = numpy.random.get_state(legacy=False)
    own = {
        name: value.tobytes() if isinstance(value, numpy.ndarray) else value
        for name, value in of_numpy["state"].items()
    }
    return random.getstate(), of_numpy | {"state": own}

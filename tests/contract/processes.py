"""Functions that are called in several processes at once, their results, and waits for them."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from hocket.distributed.launching.launch import launch


def wait_until(condition: Callable[[], object], seconds: float = 600.0) -> None:
    """Wait for other processes until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.01)


def in_processes(work: Callable[..., Any], *arguments: Any, processes: int) -> list[Any]:
    """What a function of a module returns in each process of a world."""
    with tempfile.TemporaryDirectory() as folder:
        assert launch(_save, folder, work, *arguments, processes=processes, threads=1) == 0
        return [
            torch.load(Path(folder, f"{rank}.pt"), weights_only=False)
            for rank in range(processes)
        ]


def _save(folder: str, work: Callable[..., Any], *arguments: Any) -> int:
    torch.save(work(*arguments), Path(folder, f"{distributed.get_rank()}.pt"))
    return 0

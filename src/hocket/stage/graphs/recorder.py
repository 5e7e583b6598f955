"""Recorders: what a function computes on tensors, done again on the same memory."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hocket.errors import OptionError


class GraphRecorder(ABC):
    """Records functions, which read nothing of what they compute.

    A replay does what the function has asked PyTorch for, on the same tensors, and no Python.
    """

    @abstractmethod
    def new_memory(self) -> Any:
        """Return memory for results that outlast the next function that is recorded."""

    @abstractmethod
    def record(self, function: Callable[[], object], memory: Any) -> Callable[[], None]:
        """Run a function once, and return its replay.

        Args:
            function: The function.
            memory: What it allocates its memory from. None for memory that all such functions
                share: what one leaves there is overwritten by the next one.
        """


class CudaRecorder(GraphRecorder):
    """Records CUDA graphs on the stream that is current, which must not be the default one."""

    def __init__(self) -> None:
        self._shared = torch.cuda.graph_pool_handle()

    def new_memory(self) -> Any:
        """Return a memory pool."""
        return torch.cuda.graph_pool_handle()

    def record(self, function: Callable[[], object], memory: Any) -> Callable[[], None]:
        """Capture a function, and launch its graph, as a capture computes nothing."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph,
            pool=self._shared if memory is None else memory,
            stream=torch.cuda.current_stream(),
            capture_error_mode="thread_local",  # others may load data meanwhile
        ):
            function()
        graph.replay()
        return graph.replay


def build_recorder(device: torch.device) -> GraphRecorder:
    """Build the recorder of a stage.

    Raises:
        OptionError: It has no graphs.
    """
    if device.type != "cuda":
        raise OptionError(
            f"cuda_graphs are for a GPU, and the device is {str(device)!r}; leave cuda_graphs "
            "out, or choose device='cuda'"
        )
    return CudaRecorder()


def fill(targets: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy values into the tensors that a recording reads, except into their own memory."""
    pairs = zip(targets, values, strict=True)
    other = [(t.data, v) for t, v in pairs if t.data_ptr() != v.data_ptr()]
    if other:
        torch._foreach_copy_([t for t, _ in other], [v for _, v in other])

"""The interface of everything that is timed: processes that train together, step by step."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from benchmarks.harness.workload import Step, Workload
from hocket.timeline import Recorder


@dataclass(frozen=True)
class PreparedTraining:
    """Part of a training in one process, ready to be timed.

    Attributes:
        step: One step on the batch of the workload; all processes of a row take it together. A
            pipeline has been filled: its first step takes as long as its last one.
        samples: Samples that all processes together finish in a step.
        state: Parameters and buffers that this process has, by their names in the network.
        finish: Completes the batches in flight of one of Hocket's methods.
        recorder: Recorder of busy, sending and waiting times, if there is one.
    """

    step: Step
    samples: int
    state: Mapping[str, Tensor]
    finish: Callable[[], object] = lambda: None
    recorder: Recorder | None = None


def network_state(network: nn.Module, parts: Collection[nn.Module] = ()) -> dict[str, Tensor]:
    """Return parameters and buffers by their names in the network.

    Args:
        network: The network.
        parts: Modules with tensors of the network, to leave out all others; none for all.
    """
    state = network.state_dict(keep_vars=True)
    held = {id(own) for part in parts for own in part.state_dict(keep_vars=True).values()}
    return {name: own for name, own in state.items() if not parts or id(own) in held}


class Baseline(Protocol):
    """A way to train in one or several processes. The object is sent to each of them."""

    @property
    def processes(self) -> int:
        """Number of processes that train together."""

    @property
    def threads(self) -> int:
        """Number of PyTorch threads in each of them."""

    def describe(self) -> dict[str, Any]:
        """Return the choices that should be reported with its times, as plain JSON."""

    def prepare(self, workload: Workload, rank: int) -> PreparedTraining:
        """Prepare one process; called in a gloo process group of `processes` processes."""

"""The interface of everything that is timed: processes that train together, step by step."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn

from benchmarks.harness.workload import Step, Workload
from hocket.timeline import Recorder


@dataclass(frozen=True)
class PreparedTraining:
    """Part of a training in one process, ready to be timed.

    Attributes:
        step: One step on the batch of the workload; all processes of a row take it together. A
            pipeline has been filled: its first step takes as long as its last one.
        samples: Samples that all processes together finish in a step.
        weights: Parameters that this process trains, by their names in the network.
        recorder: Recorder of busy, sending and waiting times, if there is one.
    """

    step: Step
    samples: int
    weights: Mapping[str, nn.Parameter]
    recorder: Recorder | None = None


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

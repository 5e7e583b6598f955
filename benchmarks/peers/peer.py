"""What the speed of a row is measured by: processes that train together, step by step."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import nn

from benchmarks.harness.workload import Step, Workload
from hocket.timeline import Recorder


@dataclass(frozen=True)
class Training:
    """One process's part of a training that is ready to be timed.

    Attributes:
        step: One step on the batch of the work; all processes of a row take it together. A
            training with a pipeline comes filled: its first step costs what its last one does.
        samples: Samples that all processes together finish in a step.
        weights: What this process trains, by the names of the network.
        recorder: What records its time, if anything does.
    """

    step: Step
    samples: int
    weights: Mapping[str, nn.Parameter]
    recorder: Recorder | None = None


class Baseline(Protocol):
    """A way to train, which may take several processes. It is sent to each of them."""

    @property
    def processes(self) -> int:
        """How many processes train together."""

    @property
    def threads(self) -> int:
        """Threads of PyTorch in each of them."""

    def about(self) -> dict[str, Any]:
        """What was chosen for it and should stand beside its times, as plain JSON."""

    def prepare(self, work: Workload, rank: int) -> Training:
        """This process's part; called in a gloo world of `processes` processes."""

"""The schedules of torch.distributed.pipelining: one step is a batch in micro-batches."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import pipelining

from benchmarks.harness.workload import Step, Workload
from benchmarks.peers.peer import Training
from benchmarks.peers.wire import Wired, on_wire
from hocket.losses import cross_entropy
from hocket.modes import evaluation_mode
from hocket.partition import Plan, build_stages


@dataclass(frozen=True)
class Schedule:
    """What one of its schedules needs to be told.

    Attributes:
        build: Its class.
        homes: The process of each stage, by the number of processes.
    """

    build: Callable[..., Any]
    homes: Callable[[int], list[int]]

    @property
    def several(self) -> bool:
        """Whether a process has more than one stage."""
        return len(self.homes(1)) > 1


def one_each(processes: int) -> list[int]:
    """A stage for every process.

    >>> one_each(2)
    [0, 1]
    """
    return list(range(processes))


def in_turns(processes: int) -> list[int]:
    """Two stages for every process, dealt out twice in the same order.

    >>> in_turns(2)
    [0, 1, 0, 1]
    """
    return [*range(processes)] * 2


def as_v(processes: int) -> list[int]:
    """Two stages for every process, there and back.

    >>> as_v(2)
    [0, 1, 1, 0]
    """
    return [*range(processes), *reversed(range(processes))]


SCHEDULES: Mapping[str, Schedule] = MappingProxyType(
    {
        "gpipe": Schedule(pipelining.ScheduleGPipe, one_each),
        "1f1b": Schedule(pipelining.Schedule1F1B, one_each),
        "interleaved-1f1b": Schedule(pipelining.ScheduleInterleaved1F1B, in_turns),
        "interleaved-zb": Schedule(pipelining.ScheduleInterleavedZeroBubble, in_turns),
        "zbv": Schedule(pipelining.ScheduleZBVZeroBubble, as_v),
    }
)


@dataclass(frozen=True)
class Pipeline:
    """A synchronous pipeline: weights are updated when all micro-batches are through.

    BatchNorm takes the statistics of micro-batches.

    Attributes:
        schedule: A name in `SCHEDULES`.
        processes: How many share the network.
        threads: Of PyTorch, in each process.
        microbatches: Equal parts of a batch.
        plan: Where the network is cut.
    """

    schedule: str
    processes: int
    threads: int
    microbatches: int
    plan: Plan

    def about(self) -> dict[str, Any]:
        """Micro-batches and cuts."""
        return {"microbatches": self.microbatches, "cuts": list(self.plan.cuts)}

    def prepare(self, work: Workload, rank: int) -> Training:
        """The stages of this process under the schedule."""
        network = work.in_format()
        names = {weight: name for name, weight in network.named_parameters()}
        known = SCHEDULES[self.schedule]
        stages = build_stages(network, self.plan)
        inputs, targets = work.batch_of_noise()
        wires = _wires(stages, inputs[: work.batch // self.microbatches], work.channels_last)
        last = len(stages) - 1
        mine = [k for k, home in enumerate(known.homes(self.processes)) if home == rank]
        parts = [
            pipelining.PipelineStage(
                Wired(
                    stages[k], first=k == 0, last=k == last, channels_last=work.channels_last
                ),
                k,
                len(stages),
                inputs.device,
                # Without them it finds them in hidden passes, which BatchNorm remembers.
                input_args=wires[k],
                output_args=wires[k + 1],
            )
            for k in mine
        ]
        schedule = known.build(
            parts if known.several else parts[0], self.microbatches, loss_fn=cross_entropy
        )
        weights = [weight for k in mine for weight in stages[k].parameters()]
        step = _step(
            schedule,
            work.optimizer(weights),
            inputs if 0 in mine else None,
            targets if last in mine else None,
        )
        return Training(step, work.batch, {names[weight]: weight for weight in weights})


def _step(
    schedule: Any,
    optimizer: torch.optim.Optimizer,
    inputs: Tensor | None,
    targets: Tensor | None,
) -> Step:
    """A step of a process: with inputs where it has the first stage, targets where the last."""
    given = () if inputs is None else (inputs,)

    def step() -> float | None:
        optimizer.zero_grad(set_to_none=True)
        losses: list[Tensor] = []
        # Outputs are not asked for, as putting them together would cost time for nothing.
        schedule.step(*given, target=targets, losses=losses, return_outputs=False)
        optimizer.step()
        return torch.stack(losses).mean().item() if losses else None

    return step


@torch.no_grad()
def _wires(stages: list[nn.Module], sample: Tensor, channels_last: bool) -> list[Tensor]:
    """What the first stage takes and each stage gives, as it travels."""
    wires = [sample]
    value = sample
    for stage in stages:
        with evaluation_mode(stage):
            value = stage(value)
        wires.append(on_wire(value, channels_last=channels_last).requires_grad_())
    return wires

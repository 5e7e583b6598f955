"""The schedules of torch.distributed.pipelining: one step is a batch in micro-batches."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import pipelining

from benchmarks.harness.workload import Batch, Step, Workload
from benchmarks.peers.baseline import PreparedTraining, network_state
from benchmarks.peers.wire import WireStage, example_tensors
from hocket.partition import Plan, build_stages
from hocket.signals.losses import cross_entropy


@dataclass(frozen=True)
class PipelineSchedule:
    """A schedule and its placement of stages.

    Attributes:
        build: Its class.
        placement: Function from the number of processes to the process of each stage.
    """

    build: Callable[..., Any]
    placement: Callable[[int], list[int]]


def one_per_process(processes: int) -> list[int]:
    """Place one stage in every process.

    >>> one_per_process(2)
    [0, 1]
    """
    return list(range(processes))


def round_robin(processes: int) -> list[int]:
    """Place two stages in every process, in the same order twice.

    >>> round_robin(2)
    [0, 1, 0, 1]
    """
    return [*range(processes)] * 2


def v_shape(processes: int) -> list[int]:
    """Place two stages in every process, the second half in reverse order.

    >>> v_shape(2)
    [0, 1, 1, 0]
    """
    return [*range(processes), *reversed(range(processes))]


SCHEDULES: Mapping[str, PipelineSchedule] = {
    "gpipe": PipelineSchedule(pipelining.ScheduleGPipe, one_per_process),
    "1f1b": PipelineSchedule(pipelining.Schedule1F1B, one_per_process),
    "interleaved-1f1b": PipelineSchedule(pipelining.ScheduleInterleaved1F1B, round_robin),
    "interleaved-zb": PipelineSchedule(pipelining.ScheduleInterleavedZeroBubble, round_robin),
    "zbv": PipelineSchedule(pipelining.ScheduleZBVZeroBubble, v_shape),
}


@dataclass(frozen=True)
class Pipeline:
    """A synchronous pipeline: weights are updated after all micro-batches of a batch.

    BatchNorm uses the statistics of micro-batches.

    Attributes:
        schedule: A name in `SCHEDULES`.
        processes: Processes that share the network.
        threads: PyTorch threads in each process.
        microbatches: Number of equal parts of a batch.
        plan: The cut of the network.
    """

    schedule: str
    processes: int
    threads: int
    microbatches: int
    plan: Plan

    def describe(self) -> dict[str, Any]:
        """Return the number of micro-batches, and the cuts."""
        return {"microbatches": self.microbatches, "cuts": list(self.plan.cuts)}

    def prepare(self, workload: Workload, rank: int) -> PreparedTraining:
        """Prepare the stages of this process under the schedule."""
        network = workload.build_network()
        known = SCHEDULES[self.schedule]
        stages = build_stages(network, self.plan)
        inputs, _ = workload.example_batch()
        wires = example_tensors(
            stages,
            inputs[: workload.batch // self.microbatches],
            channels_last=workload.channels_last,
        )
        last = len(stages) - 1
        local = [k for k, place in enumerate(known.placement(self.processes)) if place == rank]
        parts = [
            pipelining.PipelineStage(
                WireStage(
                    stages[k],
                    first=k == 0,
                    last=k == last,
                    channels_last=workload.channels_last,
                ),
                k,
                len(stages),
                inputs.device,
                # Else they are inferred by forwards, which change BatchNorm's statistics.
                input_args=wires[k],
                output_args=wires[k + 1],
            )
            for k in local
        ]
        schedule = known.build(
            parts if len(parts) > 1 else parts[0], self.microbatches, loss_fn=cross_entropy
        )
        weights = [weight for k in local for weight in stages[k].parameters()]
        step = _build_step(
            schedule,
            workload.optimizer(weights),
            workload.batches(multiple=workload.batch),
            first=0 in local,
            last=last in local,
        )
        state = network_state(network, [stages[k] for k in local])
        return PreparedTraining(step, workload.batch, state)


def _build_step(
    schedule: Any,
    optimizer: torch.optim.Optimizer,
    batches: Iterator[Batch],
    *,
    first: bool,
    last: bool,
) -> Step:
    """Build a step of a process, for batches of the size that the schedule was built for.

    The process of the first stage takes the inputs, the one of the last stage the targets.
    """

    def step() -> float | None:
        inputs, targets = next(batches)
        optimizer.zero_grad(set_to_none=True)
        losses: list[Tensor] = []
        # Outputs are not needed, and concatenating them would take time.
        schedule.step(
            *([inputs] if first else []),
            target=targets if last else None,
            losses=losses,
            return_outputs=False,
        )
        optimizer.step()
        return torch.stack(losses).mean().item() if losses else None

    return step

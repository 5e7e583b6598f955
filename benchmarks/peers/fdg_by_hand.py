"""FDG with a process for each stage, written by hand: its packets, its order, nothing else."""

from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor, distributed

from benchmarks.harness.workload import Workload
from benchmarks.peers.baseline import PreparedTraining, network_state
from benchmarks.peers.by_hand import DelayedStage, LastStage
from benchmarks.peers.wire import example_tensors, from_wire, to_wire
from hocket.partition import Plan, build_stages


class Neighbour:
    """A process that sends one tensor in each step, and gets one.

    The receive of a tensor is posted before it is sent, so that it travels while both compute.

    Args:
        rank: Rank of the process.
        example: A tensor as it travels, in both directions.
        channels_last: Maps are in the channels-last memory format.
    """

    def __init__(self, rank: int, example: Tensor, *, channels_last: bool) -> None:
        self._rank, self._example, self._channels_last = rank, example, channels_last
        self._sent: list[tuple[Any, Tensor]] = []  # a tensor stays until it has been sent
        self._post()

    def receive(self) -> Tensor:
        """Wait for the next tensor (B, ...) and return it."""
        self._arrival.wait()
        arrived = self._arriving
        self._post()
        return from_wire(arrived, channels_last=self._channels_last)

    def send(self, value: Tensor | None) -> None:
        """Start sending a tensor (B, ...), once the one before has been sent."""
        assert value is not None
        for handle, _ in self._sent:
            handle.wait()
        self._sent.clear()
        tensor = to_wire(value, channels_last=self._channels_last)
        self._sent.append((distributed.isend(tensor, self._rank), tensor))

    def _post(self) -> None:
        self._arriving = torch.empty_like(self._example)
        self._arrival: Any = distributed.irecv(self._arriving, self._rank)


class Dataset:
    """The inputs (B, ...) of every batch, which the first stage has instead of a neighbour."""

    def __init__(self, inputs: Tensor) -> None:
        self._inputs = inputs

    def receive(self) -> Tensor:
        """Return the inputs of the next batch."""
        return self._inputs

    def send(self, value: Tensor | None) -> None:
        """Do nothing: there is no gradient of inputs."""


@dataclass(frozen=True)
class FDGByHand:
    """FDG, backward-first and linearized at the weights of the forward, over gloo.

    It shows what the method costs on a machine: there are no checks, no checksums, no messages
    but the tensors, and no threads but the ones of PyTorch and gloo. It trains the same weights
    as Hocket, to the bit.

    Attributes:
        threads: PyTorch threads in each process.
        plan: The cut of the network.
    """

    threads: int
    plan: Plan

    @property
    def processes(self) -> int:
        """Number of processes, one for each stage."""
        return self.plan.stages

    def describe(self) -> dict[str, Any]:
        """Return the cuts, and the delay of the first stage in ticks."""
        return {"cuts": list(self.plan.cuts), "delay": self._delay(0)}

    def prepare(self, workload: Workload, rank: int) -> PreparedTraining:
        """Prepare the stage of this process, and fill the pipeline."""
        # Cut the network, and find the neighbour before the stage.
        network = workload.build_network()
        stages = build_stages(network, self.plan)
        inputs, targets = workload.example_batch()
        channels_last = workload.channels_last
        wires = example_tensors(stages, inputs, channels_last=channels_last)
        before = (
            Neighbour(rank - 1, wires[rank], channels_last=channels_last)
            if rank > 0
            else Dataset(inputs)
        )

        # The first batch arrives in the step of the rank, its gradient after the delay.
        ticks, gradient_tick = count(), rank + self._delay(rank)
        if rank == self.processes - 1:
            last = LastStage(stages[rank], workload.optimizer)

            def step() -> float | None:
                if next(ticks) < rank:
                    return None
                gradient, loss = last.train(before.receive(), targets)
                before.send(gradient)
                return loss

        else:
            stage = DelayedStage(stages[rank], workload.optimizer)
            after = Neighbour(rank + 1, wires[rank + 1], channels_last=channels_last)

            def step() -> float | None:
                tick = next(ticks)
                if tick >= gradient_tick:
                    before.send(stage.backward(after.receive()))
                if tick >= rank:
                    after.send(stage.forward(before.receive(), differentiable=rank > 0))
                return None

        # Fill the pipeline.
        for _ in range(self._delay(0) + 1):
            step()
        return PreparedTraining(step, workload.batch, network_state(network, [stages[rank]]))

    def _delay(self, stage: int) -> int:
        """Return the steps between the forward of a batch in a stage and its backward."""
        return 2 * (self.processes - 1 - stage)

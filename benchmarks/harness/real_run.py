"""Whole trainings in processes, which confirm times that were multiplied."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed

from benchmarks.harness.link_times import TimedRow, joined_nodes, parse_link
from benchmarks.harness.run_workload import RunWorkload
from benchmarks.harness.workers import RowProcesses
from benchmarks.peers import PreparedTraining


@dataclass(frozen=True)
class TimedTraining:
    """Query: take all steps of a training, and complete it; return the seconds.

    Attributes:
        steps: Number of steps.
    """

    steps: int

    def __call__(self, training: PreparedTraining) -> float:
        """Answer in the process."""
        distributed.barrier()
        start_s = time.perf_counter()
        for _ in range(self.steps):
            training.step()
        training.finish()
        return time.perf_counter() - start_s


def query_state(training: PreparedTraining) -> dict[str, Any]:
    """Query: return copies of the parameters and buffers of a process, as arrays."""
    return {name: part.detach().numpy().copy() for name, part in training.state.items()}


def run_training(one: TimedRow, link: str, updates: int) -> dict[str, float]:
    """Train a row over a link on the data of its run.

    Args:
        one: The row, which does the work of a run.
        link: The link.
        updates: Number of updates.

    Returns:
        ``seconds`` of the process that took longest, and ``test_loss`` at the end.

    Raises:
        NodesError: This machine cannot provide two nodes.
        HocketError: A process failed.
    """
    work = one.work
    assert isinstance(work, RunWorkload), "other work has no data to learn from"
    with (
        joined_nodes(parse_link(link)) as nodes,
        RowProcesses(
            one.row, one.baseline, work, nodes=nodes[: one.baseline.processes]
        ) as world,
    ):
        seconds = max(world.query(TimedTraining(updates * one.ticks)))
        states = [_as_tensors(state) for state in world.query(query_state)]
    return {"seconds": seconds, "test_loss": work.test_loss(states)}


def beside_product(ran: Mapping[str, float], product_s: float) -> dict[str, float]:
    """Return the results of a real run, with its ratio to updates times seconds of an update.

    Args:
        ran: Results of `run_training`.
        product_s: The product, in seconds.
    """
    return {**ran, "beside_product": ran["seconds"] / product_s}


def _as_tensors(state: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(values) for name, values in state.items()}

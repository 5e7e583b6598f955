"""Peak memory of training, measured in a process that does nothing else."""

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

from benchmarks.harness.allocations import trace_allocations
from benchmarks.harness.workload import PLAIN, Step, Workload
from benchmarks.peers.by_hand import step_by_hand
from hocket.methods import parse_method
from hocket.runs.environment import STATUS, peak_mib, status_mib

WRITTEN_BY_HAND = ("bp", "fdg", "dgl")
"""Rows for whose work there is a loop written by hand."""
CLEAR = Path("/proc/self/clear_refs")


def reset_peak() -> float:
    """Reset the peak of this process to its memory, as far as possible; return it in MiB."""
    if not STATUS.is_file():
        return peak_mib()
    try:
        CLEAR.write_text("5")  # 5: reset the peak
    except OSError:
        return peak_mib()
    return status_mib("VmRSS")


def measure_peak_mib(work: Workload, row: str, steps: int) -> dict[str, float | None]:
    """Return the memory that training adds to that before its first step, in MiB.

    Network and batch exist before; activations, gradients, momentum and the buffers of a method
    come after. ``peak_mib`` counts the process, and depends on what the C library gives back;
    ``allocated_mib`` counts all tensors, and ``by_hand_mib`` the tensors of a loop written by
    hand for the same work, if there is one.

    Args:
        work: The workload.
        row: ``plain``, or a method as `parse_method` reads it.
        steps: Number of steps after the pipeline is full.

    Raises:
        HocketError: The row cannot be trained.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_measure_here, work, row, steps).result()


def predicted_memory(work: Workload, row: str) -> dict[str, int]:
    """Return a method's own account of what its stages hold at most, summed over the stages.

    The plain loop holds one of each, which is counted as one for every stage.
    """
    names = ("graphs", "inputs", "versions")
    if row == PLAIN:
        return dict.fromkeys(names, work.stages)
    method = parse_method(row)
    stages = [method.memory(k, work.stages) for k in range(work.stages)]
    return {name: sum(getattr(stage, name) for stage in stages) for name in names}


def _measure_here(work: Workload, row: str, steps: int) -> dict[str, float | None]:
    """Measure in this process, which should be a new one; see `measure_peak_mib`."""
    torch.set_num_threads(work.threads)
    has_loop = row in WRITTEN_BY_HAND
    return {
        "peak_mib": _measure_peak(work, row, steps),
        "allocated_mib": count_allocated(work, row, steps, by_hand=False),
        "by_hand_mib": count_allocated(work, row, steps, by_hand=True) if has_loop else None,
    }


def _measure_peak(work: Workload, row: str, steps: int) -> float:
    """Return what training adds to the memory of this process at its peak, in MiB."""
    dataclasses.replace(work, batch=2).plain_step()()  # libraries initialize themselves
    step, fill = _build_step(work, row)
    before_mib = reset_peak()
    for _ in range(fill + steps):
        step()
    return peak_mib() - before_mib


def count_allocated(work: Workload, row: str, steps: int, *, by_hand: bool) -> float:
    """Return the most memory that tensors have taken above that before the first step, in MiB.

    The row is as in `measure_peak_mib`; ``by_hand`` runs the loop written by hand for it.
    """

    def run() -> Iterator[None]:
        step, fill = _build_step(work, row, by_hand=by_hand)
        yield
        for _ in range(fill + steps):
            step()
            yield

    before, *after = trace_allocations(run())
    return (max(each.peak for each in after) - before.held) / 2**20


def _build_step(work: Workload, row: str, *, by_hand: bool = False) -> tuple[Step, int]:
    """Return a step of a row, and the number of steps until its pipeline is full."""
    if row == PLAIN or (by_hand and row == "bp"):  # which is the plain loop by hand
        return work.plain_step(), 1
    method = parse_method(row)
    trainer, fill = work.build_trainer(method), work.warmup_steps(method)
    if by_hand:
        return step_by_hand(trainer.stages, work.optimizer, work.example_batch()), fill
    return work.trainer_step(trainer), fill

"""Peak memory of training, measured in a process that does nothing else.

Run as ``python -m benchmarks.harness.memory WORKLOAD ROW STEPS``, with WORKLOAD the fields of a
`Workload` as JSON; prints the peak in MiB.
"""

import dataclasses
import json
import sys

import torch

from benchmarks.harness.process import run_module
from benchmarks.harness.workload import PLAIN, Workload
from hocket.methods import parse_method
from hocket.runs.peak_memory import peak_mib, reset_peak


def measure_peak_mib(work: Workload, row: str, steps: int) -> float:
    """Return the memory that training adds to that before its first step, in MiB.

    Network and batch exist before; activations, gradients, momentum and the buffers of a method
    come after.

    Args:
        work: The workload.
        row: ``plain``, or a method as `parse_method` reads it.
        steps: Number of steps after the pipeline is full.

    Raises:
        HocketError: The process failed.
    """
    fields = json.dumps(dataclasses.asdict(work))
    module = "benchmarks.harness.memory"
    return float(run_module(module, fields, row, str(steps), threads=work.threads))


def predicted_memory(work: Workload, row: str) -> dict[str, int]:
    """Return a method's own account of what its stages hold at most, summed over the stages.

    The plain loop holds one of each, which is counted as one for every stage.
    """
    if row == PLAIN:
        return dict.fromkeys(("graphs", "inputs", "versions"), work.stages)
    method = parse_method(row)
    stages = [method.memory(k, work.stages) for k in range(work.stages)]
    return {
        "graphs": sum(stage.graphs for stage in stages),
        "inputs": sum(stage.inputs for stage in stages),
        "versions": sum(stage.versions for stage in stages),
    }


def measure_peak_here(work: Workload, row: str, steps: int) -> float:
    """Measure the same in this process, which should be a new one.

    Args:
        work: The workload.
        row: ``plain``, or a method as `parse_method` reads it.
        steps: Number of steps after the pipeline is full.
    """
    dataclasses.replace(work, batch=2).plain_step()()  # libraries initialize themselves
    if row == PLAIN:
        step, fill = work.plain_step(), 1
    else:
        method = parse_method(row)
        step, fill = work.trainer_step(work.build_trainer(method)), work.warmup_steps(method)
    before_mib = reset_peak()
    for _ in range(fill + steps):
        step()
    return peak_mib() - before_mib


def main(fields: str, row: str, steps: str) -> None:
    """Measure in this process, and print the peak in MiB.

    Args:
        fields: Fields of the `Workload`, as JSON.
        row: ``plain`` or a method.
        steps: Number of steps.
    """
    values = json.loads(fields)
    work = Workload(**(values | {"shape": tuple(values["shape"])}))
    torch.set_num_threads(work.threads)
    print(measure_peak_here(work, row, int(steps)))


if __name__ == "__main__":
    main(*sys.argv[1:])

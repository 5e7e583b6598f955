"""How much memory training takes at its fullest, measured in a process that does nothing else.

Run as ``python -m benchmarks.harness.memory WORK ROW STEPS``, with WORK the fields of a `Work`
as JSON; prints the peak in MiB.
"""

import dataclasses
import json
import sys

import torch

from benchmarks.harness.process import in_own_process
from benchmarks.harness.workload import PLAIN, Workload
from hocket.runs.build import parse_method
from hocket.runs.peak_memory import peak_mib as process_peak_mib
from hocket.runs.peak_memory import reset_peak


def peak_mib(work: Workload, row: str, steps: int) -> float:
    """Memory that training adds to what was there before its first step, in MiB.

    Network and batch are there before; activations, gradients, momentum and what a method
    keeps come after.

    Args:
        work: What to train.
        row: ``plain``, or a method as `method_of` reads it.
        steps: How many steps to take after the pipeline is full.

    Raises:
        HocketError: The process failed.
    """
    fields = json.dumps(dataclasses.asdict(work))
    module = "benchmarks.harness.memory"
    return float(in_own_process(module, fields, row, str(steps), threads=work.threads))


def predicted(work: Workload, row: str) -> dict[str, int]:
    """What a method says that its stages hold at their fullest, summed over the stages.

    The plain loop holds one of each, here counted as one for every stage.
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


def measure(work: Workload, row: str, steps: int) -> float:
    """The same in this process, which should be a fresh one."""
    dataclasses.replace(work, batch=2).plain()()  # libraries set themselves up
    if row == PLAIN:
        step, fill = work.plain(), 1
    else:
        method = parse_method(row)
        step, fill = work.decoupled(work.trainer(method)), work.until_full(method)
    before_mib = reset_peak()
    for _ in range(fill + steps):
        step()
    return process_peak_mib() - before_mib


def main(fields: str, row: str, steps: str) -> None:
    """What the process does."""
    chosen = json.loads(fields)
    work = Workload(**(chosen | {"shape": tuple(chosen["shape"])}))
    torch.set_num_threads(work.threads)
    print(measure(work, row, int(steps)))


if __name__ == "__main__":
    main(*sys.argv[1:])

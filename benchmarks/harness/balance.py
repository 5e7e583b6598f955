"""Balanced cuts for pipelines, by measured times of layers."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.harness.workload import Workload, torch_threads
from hocket.errors import CutError
from hocket.partition import Plan, layers_in_order
from hocket.partition.costs.profile import profile


@dataclass(frozen=True)
class Balancer:
    """Cuts of pipelines that balance measured times of a workload's layers.

    Attributes:
        work: The workload whose network is cut.
        times_s: Seconds of each layer by batch size. Times are not proportional to the size;
            every size is timed once, when first needed.
    """

    work: Workload
    times_s: dict[int, dict[str, float]] = field(default_factory=dict)

    def plan(self, placement: Sequence[int], microbatches: int) -> Plan:
        """Return the cuts for which a step should be shortest.

        Raises:
            CutError: There are fewer layers than stages.
        """
        times_s = self._measure_times(self.work.batch // microbatches)
        names = list(times_s)
        if len(names) < len(placement):
            raise CutError(
                f"cannot cut {self.work.network} into {len(placement)} stages: it has "
                f"{len(names)} layers; ask for fewer stages"
            )
        cuts = balance_pipeline(list(times_s.values()), placement, microbatches)
        return Plan(tuple(names[cut] for cut in cuts))

    def _measure_times(self, batch: int) -> dict[str, float]:
        """Return seconds of each layer for batches of this size, measured once."""
        if batch not in self.times_s:
            network = self.work.build_network()
            inputs, _ = self.work.example_batch()
            with torch_threads(self.work.threads):
                costs = profile(layers_in_order(network), inputs[:batch])
            self.times_s[batch] = {name: cost.total_s for name, cost in costs.items()}
        return self.times_s[batch]


def balance_pipeline(
    costs: Sequence[float], placement: Sequence[int], microbatches: int
) -> list[int]:
    """Return the first layers of stages 1, 2, ... for which a pipeline's step is shortest.

    The model of a step's time is the work of the busiest process, and the time in which the
    largest stage fills the pipeline: `microbatches * busiest + (processes - 1) * largest`. It
    is exact for equal stages with one for each process; with more, it keeps processes equally
    busy and avoids large stages. The search is exhaustive, with pruning of cuts that begin no
    better than the best one so far; among equals, the earliest wins.

    Args:
        costs: Time of each layer for a micro-batch.
        placement: The process of each stage.
        microbatches: Number of micro-batches in a batch.

    >>> balance_pipeline([1.0, 1.0, 1.0, 3.0], placement=[0, 1], microbatches=4)
    [3]
    >>> costs = [1.0, 1.0, 1.0, 1.0, 2.0, 2.0]
    >>> balance_pipeline(costs, placement=[0, 1, 1, 0], microbatches=4)
    [2, 4, 5]
    """
    best: tuple[float, list[int]] = (float("inf"), [])
    busy = [0.0] * (max(placement) + 1)

    def extend(cuts: list[int], largest: float) -> None:
        """Try all ends of the stage that begins at the last cut."""
        nonlocal best
        stage, begin = len(cuts) - 1, cuts[-1]
        process, left = placement[stage], len(placement) - len(cuts)
        before = busy[process]
        for end in range(begin + 1, len(costs) - left + 1) if left else [len(costs)]:
            cost = sum(costs[begin:end])
            busy[process] = before + cost
            longest = max(largest, cost)
            step = microbatches * max(busy) + max(placement) * longest
            if step >= best[0]:
                break  # a longer stage is no better
            if left:
                extend([*cuts, end], longest)
            else:
                best = (step, cuts[1:])
        busy[process] = before

    extend([0], 0.0)
    return best[1]

"""Where to cut a network so that a pipeline is quick, by measured times of its layers."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.harness.threads import torch_threads
from benchmarks.harness.workload import Workload
from hocket.errors import CutError
from hocket.partition import Plan, layers_in_order
from hocket.partition.profile import profile


@dataclass(frozen=True)
class Balance:
    """Measured times of a work's layers, and the cuts they suggest.

    Attributes:
        work: Whose network is cut.
        times_s: Seconds of each layer by the size of the batch: what small batches cost is not
            in proportion, so every size is timed once, when it is first asked for.
    """

    work: Workload
    times_s: dict[int, dict[str, float]] = field(default_factory=dict)

    def plan(self, homes: Sequence[int], microbatches: int) -> Plan:
        """The cuts for which a step should be shortest.

        Args:
            homes: The process of each stage.
            microbatches: Equal parts in which a batch passes the stages.

        Raises:
            CutError: There are fewer layers than stages.
        """
        times_s = self._timed(self.work.batch // microbatches)
        names = list(times_s)
        if len(names) < len(homes):
            raise CutError(
                f"cannot cut {self.work.network} into {len(homes)} stages: it has {len(names)} "
                "layers; ask for fewer stages"
            )
        cuts = even(list(times_s.values()), homes, microbatches)
        return Plan(tuple(names[cut] for cut in cuts))

    def _timed(self, batch: int) -> dict[str, float]:
        """The times for batches of this size, measured once, on the threads of a process."""
        if batch not in self.times_s:
            network = self.work.in_format()
            inputs, _ = self.work.batch_of_noise()
            with torch_threads(self.work.threads):
                costs = profile(layers_in_order(network), inputs[:batch])
            self.times_s[batch] = {name: cost.total_s for name, cost in costs.items()}
        return self.times_s[batch]


def even(costs: Sequence[float], homes: Sequence[int], microbatches: int) -> list[int]:
    """The first layer of stages 1, 2, ... for which a pipeline's step is shortest.

    A step is taken to last as long as the busiest process works, and as the largest stage
    takes to fill the pipeline: `microbatches * busiest + (processes - 1) * largest`. That is
    exact for equal stages with one for each process; with more, it keeps processes equally
    busy without stages that the others would long wait for. All cuts are tried but those that
    begin no better than the best one found; among equals, the earliest wins.

    Args:
        costs: Of each layer for a micro-batch.
        homes: The process of each stage.
        microbatches: Parts of a batch.

    >>> even([1.0, 1.0, 1.0, 3.0], homes=[0, 1], microbatches=4)
    [3]
    >>> even([1.0, 1.0, 1.0, 1.0, 2.0, 2.0], homes=[0, 1, 1, 0], microbatches=4)
    [2, 4, 5]
    """
    best: tuple[float, list[int]] = (float("inf"), [])
    busy = [0.0] * (max(homes) + 1)

    def extend(cuts: list[int], largest: float) -> None:
        """Try all ends of the stage that begins at the last cut."""
        nonlocal best
        stage, begin = len(cuts) - 1, cuts[-1]
        home, left = homes[stage], len(homes) - len(cuts)
        before = busy[home]
        for end in range(begin + 1, len(costs) - left + 1) if left else [len(costs)]:
            cost = sum(costs[begin:end])
            busy[home] = before + cost
            longest = max(largest, cost)
            step = microbatches * max(busy) + max(homes) * longest
            if step >= best[0]:
                break  # a longer stage is no better
            if left:
                extend([*cuts, end], longest)
            else:
                best = (step, cuts[1:])
        busy[home] = before

    extend([0], 0.0)
    return best[1]

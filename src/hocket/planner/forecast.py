"""What to expect of a method on a cut network, from what its layers were measured to take."""

from collections.abc import Sequence
from dataclasses import dataclass

from hocket.cut.link import Link
from hocket.cut.profile import LayerCost
from hocket.method import Method
from hocket.planner.simulate import StageTimes, tick_s

MIB = 2**20
MICRO_BATCHES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Held:
    """What a stage holds at its fullest, in MiB.

    Attributes:
        weights: Parameters, their gradients, and buffers.
        optimizer: A momentum.
        versions: Older weights, for graphs that began with them.
        graphs: What forwards keep for their backwards.
        inputs: What was received, for batches in flight.
    """

    weights: float
    optimizer: float
    versions: float
    graphs: float
    inputs: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.weights + self.optimizer + self.versions + self.graphs + self.inputs


@dataclass(frozen=True)
class Forecast:
    """What to expect.

    Attributes:
        method: Its name, with options.
        cuts: The modules at which stages 1, 2, ... begin.
        times: Forward, backward, update and packets of each stage.
        packet_bytes: Over each border, each way.
        held: Of each stage.
        delay: Ticks of each stage between forward and backward of a batch.
        staleness: Updates of each stage in between.
        tick_s: From one batch to the next, in seconds.
        bp_s: The same of plain back-propagation on one device.
        ddp_s: Of as many devices that share the batch and then sum their gradients over the
            link, one after the other.
        pipeline_s: Of as many devices in a pipeline that is flushed at every update, with the
            best number of micro-batches.
    """

    method: str
    cuts: tuple[str, ...]
    times: tuple[StageTimes, ...]
    packet_bytes: tuple[int, ...]
    held: tuple[Held, ...]
    delay: tuple[int, ...]
    staleness: tuple[float, ...]
    tick_s: float
    bp_s: float
    ddp_s: float
    pipeline_s: float

    @property
    def imbalance(self) -> float:
        """By how much the longest stage is longer than the mean; 0 is even."""
        seconds = [stage.total_s for stage in self.times]
        return max(seconds) * len(seconds) / sum(seconds) - 1

    @property
    def speed_up(self) -> float:
        """Over plain back-propagation on one device."""
        return self.bp_s / self.tick_s


def forecast(
    name: str,
    method: Method,
    costs: dict[str, LayerCost],
    borders: Sequence[int],
    *,
    input_bytes: int,
    update_s: float,
    link: Link,
) -> Forecast:
    """What to expect of a method on stages that are cut at these borders.

    Args:
        name: What the method is called, with options.
        method: The method.
        costs: Of each layer, by the module it begins with.
        borders: Layer n ends at border n.
        input_bytes: Of a batch.
        update_s: Seconds that an update of all weights takes; each stage has its share.
        link: What packets go over.
    """
    layers, names = list(costs.values()), list(costs)
    firsts = [0, *(border + 1 for border in borders)]
    stages = [layers[a:b] for a, b in zip(firsts, [*firsts[1:], len(layers)], strict=True)]
    weights = [sum(layer.weight_bytes for layer in stage) for stage in stages]
    sent = [stage[-1].output_bytes for stage in stages]
    times = tuple(
        StageTimes(
            forward_s=sum(layer.forward_s for layer in stage),
            backward_s=sum(layer.backward_s for layer in stage),
            update_s=update_s * size / max(1, sum(weights)),
            packet_s=link.seconds(size_sent),
        )
        for stage, size, size_sent in zip(stages, weights, sent, strict=True)
    )
    count = len(stages)
    alone_s = sum(stage.total_s for stage in times)
    return Forecast(
        method=name,
        cuts=tuple(names[first] for first in firsts[1:]),
        times=times,
        packet_bytes=tuple(sent[:-1]),
        held=tuple(
            _held(method, k, stage, weights[k], ([input_bytes, *sent])[k], count)
            for k, stage in enumerate(stages)
        ),
        delay=tuple(method.delay(k, count) for k in range(count)),
        staleness=tuple(method.staleness(k, count) for k in range(count)),
        tick_s=tick_s(method, times),
        bp_s=alone_s,
        ddp_s=_ddp_s(alone_s - update_s, update_s, sum(weights), count, link),
        pipeline_s=min(_pipeline_s(times, sent, link, parts) for parts in MICRO_BATCHES),
    )


def _held(
    method: Method,
    stage: int,
    layers: Sequence[LayerCost],
    weights: int,
    received: int,
    stages: int,
) -> Held:
    memory = method.memory(stage, stages)
    return Held(
        weights=2 * weights / MIB,
        optimizer=weights / MIB,
        versions=(memory.versions - 1) * weights / MIB,
        graphs=memory.graphs * sum(layer.kept_bytes for layer in layers) / MIB,
        inputs=memory.inputs * received / MIB,
    )


def _ddp_s(passes_s: float, update_s: float, weights: int, devices: int, link: Link) -> float:
    """A share of the batch each, then a ring of 2 (K - 1) steps with a K-th of the weights."""
    return passes_s / devices + 2 * (devices - 1) * link.seconds(weights / devices) + update_s


def _pipeline_s(
    times: Sequence[StageTimes], sent: Sequence[int], link: Link, parts: int
) -> float:
    """All parts through the longest stage, and one through each of the others."""
    last = len(times) - 1
    each_s = [
        (stage.forward_s + stage.backward_s) / parts
        + (2 * link.seconds(sent[k] / parts) if k < last else 0.0)
        for k, stage in enumerate(times)
    ]
    return sum(each_s) + (parts - 1) * max(each_s) + max(stage.update_s for stage in times)


def best(forecasts: Sequence[Forecast]) -> tuple[Forecast, str]:
    """The one to choose, and why.

    Speed decides, but what is less than 3 % quicker is not worth more stale gradients, and
    then not more memory: that much a measured time is off by.
    """
    quickest = min(forecasts, key=lambda f: f.tick_s)
    alike = [f for f in forecasts if f.tick_s <= 1.03 * quickest.tick_s]
    chosen = min(alike, key=lambda f: (max(f.staleness), _largest(f), f.tick_s))
    why = f"{chosen.speed_up:.2f} times back-propagation on one device"
    if chosen is not quickest:
        why += (
            f", within 3 % of the quickest ({quickest.method} on {len(quickest.times)} "
            f"stages), with gradients {max(chosen.staleness):g} updates late instead of "
            f"{max(quickest.staleness):g} and {_largest(chosen):.0f} MiB in the fullest stage "
            f"instead of {_largest(quickest):.0f}"
        )
    else:
        why += "; nothing that is as quick has less stale gradients or holds less"
    return chosen, why


def _largest(found: Forecast) -> float:
    return max(held.total for held in found.held)

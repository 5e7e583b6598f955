"""What to expect of a method on a cut network, from what its stages took in a rehearsal."""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from hocket.methods.method import Method
from hocket.partition.link import Link
from hocket.planner.rehearse import Rehearsed
from hocket.planner.simulate import StageTimes, shared, tick_s

MIB = 2**20
MICRO_BATCHES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class StageMemory:
    """What a stage holds at its fullest, in MiB.

    Attributes:
        weights: Parameters, their gradients, and buffers, of heads and synthesizers too.
        optimizer: A momentum.
        versions: Copies of weights, for graphs that began with them.
        inputs: What was received, for batches in flight or in a buffer.
        graphs: What forwards keep for their backwards, and what comes and goes with them.
        packets: What travels while it computes, one each way over each border.
    """

    weights: float
    optimizer: float
    versions: float
    inputs: float
    graphs: float
    packets: float

    @property
    def total(self) -> float:
        """All of it."""
        return math.fsum(astuple(self))


@dataclass(frozen=True)
class StageProfiles:
    """What was rehearsed for one forecast, all of it in the same company.

    Attributes:
        own: The stages of the method.
        plain: The stages of the same cuts by back-propagation.
        whole: The network as one stage.
    """

    own: Sequence[Rehearsed]
    plain: Sequence[Rehearsed]
    whole: Rehearsed


@dataclass(frozen=True)
class Forecast:
    """What to expect.

    Attributes:
        method: Its name, with options.
        cuts: The modules at which stages 1, 2, ... begin.
        times: Forward, backward, update and packets of each stage.
        packet_bytes: Over each border, each way.
        memory: Of each stage.
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
    memory: tuple[StageMemory, ...]
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
    cuts: Sequence[str],
    alone: StageProfiles,
    *,
    link: Link,
    together: StageProfiles | None = None,
) -> Forecast:
    """What to expect of a method on stages that are cut at these modules.

    Args:
        name: What the method is called, with options.
        method: The method.
        cuts: Where stages 1, 2, ... begin.
        alone: What was rehearsed with nothing else at work.
        link: What packets go over.
        together: The same while as many others rehearsed as there are other stages, where they
            share a machine; each stage has a device of its own if not given.
    """
    count = len(alone.own)
    busy = together or alone
    times = _times(alone.own, link)
    if together is not None:
        times = shared(method, times, _times(together.own, link))
    sent = [stage.sent_bytes for stage in alone.own]
    return Forecast(
        method=name,
        cuts=tuple(cuts),
        times=times,
        packet_bytes=tuple(sent[:-1]),
        memory=tuple(_held(method, k, stage, count) for k, stage in enumerate(alone.own)),
        delay=tuple(method.delay(k, count) for k in range(count)),
        staleness=tuple(method.staleness(k, count) for k in range(count)),
        tick_s=tick_s(method, times, [stage.jitter for stage in busy.own]),
        bp_s=sum(map(alone.whole.usual_s, alone.whole.seconds)),
        ddp_s=_ddp_s(busy.whole, count, link),
        pipeline_s=min(
            _pipeline_s(_times(busy.plain, link), sent, link, parts) for parts in MICRO_BATCHES
        ),
    )


def _times(stages: Sequence[Rehearsed], link: Link) -> tuple[StageTimes, ...]:
    return tuple(
        StageTimes(
            forward_s=stage.usual_s("F"),
            backward_s=stage.usual_s("B"),
            update_s=stage.usual_s("U"),
            packet_s=link.seconds(stage.sent_bytes),
            learn_s=stage.usual_s("T"),
        )
        for stage in stages
    )


def _held(method: Method, stage: int, rehearsed: Rehearsed, stages: int) -> StageMemory:
    """What is held, by what it is for: as rehearsed, and in buffers and packets beside it."""
    memory, weights = method.memory(stage, stages), rehearsed.weight_bytes
    buffered = memory.inputs - 1 if method.replay is not None else 0
    known = {
        "weights": 2 * weights,
        "optimizer": rehearsed.optimizer_bytes,
        # The newest graph has a copy too, as the weights will change before its backward.
        "versions": memory.versions * weights if memory.versions > 1 else 0,
        "inputs": memory.inputs * rehearsed.received_bytes,
    }
    total = rehearsed.peak_bytes + buffered * rehearsed.received_bytes
    known["graphs"] = max(0, total - sum(known.values()))
    answered = method.signal.needs_gradient or method.signal.learns_from_gradient
    crossing = rehearsed.received_bytes * (stage > 0)
    crossing += rehearsed.sent_bytes * (stage < stages - 1)
    known["packets"] = crossing * (2 if answered else 1)
    return StageMemory(**{name: size / MIB for name, size in known.items()})


def _ddp_s(whole: Rehearsed, devices: int, link: Link) -> float:
    """A share of the batch each, then a ring of 2 (K - 1) steps with a K-th of the weights."""
    passes_s = whole.usual_s("F") + whole.usual_s("B")
    ring_s = 2 * (devices - 1) * link.seconds(whole.weight_bytes / devices)
    return passes_s / devices + ring_s + whole.usual_s("U")


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
    return max(held.total for held in found.memory)

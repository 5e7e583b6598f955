"""Forecast of a method on a cut network, from the profiles of its stages."""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace

from hocket.errors import OptionError
from hocket.methods import GPipe
from hocket.methods.method import Method
from hocket.methods.simulated.delays import with_extra_delay
from hocket.partition.costs.device import Device, format_memory
from hocket.transport.processes.connection import LEAST_AHEAD, messages_ahead
from hocket_lab.planner.devices import ALIKE
from hocket_lab.planner.rehearsals import Candidate
from hocket_lab.planner.rehearse import StageProfile
from hocket_lab.planner.simulate import StageTimes, contended_times, tick_s
from hocket_lab.planner.window import TOLERANCE, least_extra_delay

MIB = 2**20
MICRO_BATCHES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class StageMemory:
    """Peak memory of a stage, in MiB, by what it is used for.

    Attributes:
        weights: Parameters, their gradients, and buffers, also of heads and synthesizers.
        optimizer: State of the optimizer, with momentum.
        versions: Copies of weights, for graphs that were built with them.
        inputs: Received activations of the batches in flight or in a buffer.
        graphs: Tensors that forwards save for their backwards, and temporary ones.
        packets: Packets in transit while the stage computes: one that is sent over each edge,
            and those whose receives are posted ahead.
    """

    weights: float
    optimizer: float
    versions: float
    inputs: float
    graphs: float
    packets: float

    @property
    def total(self) -> float:
        """Sum of all."""
        return math.fsum(astuple(self))


@dataclass(frozen=True)
class StageProfiles:
    """Profiles that a forecast is computed from, all measured under the same conditions.

    Attributes:
        method: Stages of the method.
        backpropagation: Stages of the same cut, trained by back-propagation.
        uncut: The network as one stage, trained by back-propagation.
    """

    method: Sequence[StageProfile]
    backpropagation: Sequence[StageProfile]
    uncut: StageProfile


@dataclass(frozen=True, kw_only=True)
class Forecast(Candidate):
    """Predicted speed, memory and staleness of a method on a cut network.

    Attributes:
        times: Durations of the actions and packets of each stage.
        packet_bytes: Size of a packet over each edge, mean of both ways.
        memory: Peak memory of each stage.
        delay: Ticks of each stage between forward and backward of a batch.
        staleness: Updates of each stage between forward and backward of a batch.
        tick_s: Seconds from one batch to the next.
        hiding_delay: Least extra delay of each edge with which no stage waits for packets;
            empty if none is needed, or none helps.
        bp_s: The same for plain back-propagation on the fastest device.
        ddp_s: The same for data parallelism on as many devices, which add up their gradients
            over the link after the backward; on fewer, if a batch has fewer inputs.
        pipeline_s: The same for a pipeline of as many devices that is flushed at every update,
            with the best number of micro-batches, each of one input or more.
    """

    times: tuple[StageTimes, ...]
    packet_bytes: tuple[int, ...]
    memory: tuple[StageMemory, ...]
    delay: tuple[int, ...]
    staleness: tuple[float, ...]
    tick_s: float
    hiding_delay: tuple[int, ...]
    bp_s: float
    ddp_s: float
    pipeline_s: float

    @property
    def title(self) -> str:
        """The method, with its extra delay, and its number of stages."""
        ticks = ",".join(map(str, self.extra_delay))
        delay = f" with extra delay {ticks}" if ticks else ""
        codec = "" if self.codec == Candidate.codec else f" with {self.codec}"
        return f"{self.method}{delay}{codec} on {len(self.times)} stages"

    @property
    def imbalance(self) -> float:
        """Relative excess of the longest stage over the mean; 0 if all are equally long."""
        seconds = [stage.total_s for stage in self.times]
        return max(seconds) * len(seconds) / sum(seconds) - 1

    @property
    def speed_up(self) -> float:
        """Speed compared with plain back-propagation on one device."""
        return self.bp_s / self.tick_s

    @property
    def peak_mib(self) -> float:
        """Memory of the stage that needs the most, in MiB."""
        return max(stage.total for stage in self.memory)

    @property
    def memory_used(self) -> float:
        """Largest part of a device's memory that its stage needs; above 1, it does not fit."""
        pairs = zip(self.memory, self.devices, strict=True)
        return max(stage.total / device.memory_limit_mib for stage, device in pairs)


def forecast(
    candidate: Candidate,
    profiles: StageProfiles,
    *,
    contended_profiles: StageProfiles | None = None,
) -> Forecast:
    """Forecast a method on a cut network.

    Args:
        candidate: The method, the cut and the devices.
        profiles: Profiles measured while nothing else was running.
        contended_profiles: Profiles measured while as many processes as stages were running,
            if the stages share a machine; None if each has its own device.
    """
    method, count = candidate.build_method(), len(profiles.method)
    devices = candidate.devices or ALIKE.for_stages(count)
    times = _stage_times(profiles.method, devices)
    if contended_profiles is not None:
        slow_times = _stage_times(contended_profiles.method, devices)
        times = contended_times(method, times, slow_times)
    busy = contended_profiles or profiles
    packet_bytes = [stage.packet_bytes for stage in profiles.method]
    batch_size = profiles.uncut.batch_size
    return Forecast(
        **vars(candidate) | {"devices": devices},
        times=times,
        packet_bytes=tuple(packet_bytes[:-1]),
        memory=tuple(_stage_memory(method, k, profiles.method) for k in range(count)),
        delay=tuple(method.delay(k, count) for k in range(count)),
        staleness=tuple(method.staleness(k, count) for k in range(count)),
        tick_s=tick_s(method, times, [stage.jitter for stage in busy.method]),
        hiding_delay=() if candidate.extra_delay else _hiding_delay(method, times),
        bp_s=sum(map(profiles.uncut.median_s, profiles.uncut.seconds))
        / max(device.speed for device in devices),
        ddp_s=_ddp_s(busy.uncut, min(count, batch_size), devices),
        pipeline_s=min(
            _pipeline_s(busy.backpropagation, devices, micro_batches)
            for micro_batches in MICRO_BATCHES
            if micro_batches <= batch_size
        ),
    )


def _hiding_delay(method: Method, times: Sequence[StageTimes]) -> tuple[int, ...]:
    """Return the least extra delays that hide the link; empty if they are 0 or not allowed."""
    extra = least_extra_delay(method, times)
    if not any(extra):
        return ()
    try:
        with_extra_delay(method, extra).require_stages(len(times))
    except OptionError:  # older weights than the method keeps
        return ()
    return extra


def _stage_times(
    profiles: Sequence[StageProfile], devices: Sequence[Device]
) -> tuple[StageTimes, ...]:
    return tuple(
        StageTimes(
            forward_s=profile.median_s("F") / device.speed,
            backward_s=profile.median_s("B") / device.speed,
            update_s=profile.median_s("U") / device.speed,
            packet_s=device.link.seconds(profile.packet_bytes),
            learn_s=profile.median_s("T") / device.speed,
            transfer_s=device.link.seconds(profile.packet_bytes) - device.link.latency_s,
        )
        for profile, device in zip(profiles, devices, strict=True)
    )


def _stage_memory(method: Method, stage: int, profiles: Sequence[StageProfile]) -> StageMemory:
    """Split the measured peak by use, and add buffers and packets, which were not measured."""
    # Divide what was measured; a replay buffer was not filled.
    profile, stages = profiles[stage], len(profiles)
    memory = method.memory(stage, stages, inverts=profile.inverts)
    trainable = profile.trainable_bytes
    buffered = memory.inputs - 1 if method.free_running else 0
    rest = profile.peak_bytes + buffered * profile.received_bytes
    sizes = {}
    for use, size in (
        ("weights", profile.weight_bytes + trainable),
        ("optimizer", profile.optimizer_bytes),
        # The newest graph has a copy too, as the weights will change before its backward.
        ("versions", memory.versions * trainable if memory.versions > 1 else 0),
        ("inputs", memory.inputs * profile.received_bytes),
    ):
        sizes[use] = min(size, rest)  # all uses together are what was measured
        rest -= sizes[use]
    sizes["graphs"] = rest
    # Packets from the previous stage and to it, and the same for the next one.
    sizes["packets"] = 0
    if stage > 0:
        ahead = _messages_ahead(method, stage - 1)
        answers = method.gradients_sent(stage, stages) + profiles[stage - 1].inverts
        sizes["packets"] += profiles[stage - 1].sent_bytes * (ahead + answers)
    if stage < stages - 1:
        ahead = _messages_ahead(method, stage)
        answers = method.gradients_sent(stage + 1, stages) + profile.inverts
        sizes["packets"] += profile.sent_bytes * (1 + answers * ahead)
    return StageMemory(**{name: size / MIB for name, size in sizes.items()})


def _messages_ahead(method: Method, edge: int) -> int:
    """Return the number of messages whose receives are posted ahead, each way over an edge."""
    return LEAST_AHEAD if method.free_running else messages_ahead(method.edge_delay(edge))


def _ddp_s(uncut: StageProfile, count: int, devices: Sequence[Device]) -> float:
    """Return the seconds of a batch that K devices share evenly, with a ring all-reduce.

    The slowest device and the slowest link decide. The ring has 2 (K - 1) steps, each of which
    transfers a K-th of the gradients.
    """
    passes_s = uncut.median_s("F") + uncut.median_s("B")
    step_s = max(device.link.seconds(uncut.trainable_bytes / count) for device in devices)
    slowest = min(device.speed for device in devices)
    return (passes_s / count + uncut.median_s("U")) / slowest + 2 * (count - 1) * step_s


def _pipeline_s(
    profiles: Sequence[StageProfile], devices: Sequence[Device], micro_batches: int
) -> float:
    """Return the seconds of a batch whose micro-batches are a group of GPipe."""
    times = [
        replace(
            stage,
            forward_s=stage.forward_s / micro_batches,
            backward_s=stage.backward_s / micro_batches,
            packet_s=stage.packet_s - stage.transfer_s * (1 - 1 / micro_batches),
            transfer_s=stage.transfer_s / micro_batches,
        )
        for stage in _stage_times(profiles, devices)
    ]
    return micro_batches * tick_s(GPipe(accumulate=micro_batches), times)


def choose_best(forecasts: Sequence[Forecast]) -> tuple[Forecast, str]:
    """Return the forecast to choose, and the reason as text.

    Speed decides; among those within 3 % of the fastest, which is the error of measured times,
    first the staleness of gradients decides and then the memory.

    Raises:
        OptionError: Every forecast has a stage that needs more memory than its device has.
    """
    # Leave out what does not fit into the memory.
    fitting = [f for f in forecasts if f.memory_used <= 1]
    if not fitting:
        closest = min(forecasts, key=lambda f: f.memory_used)
        needed_mib = [stage.total for stage in closest.memory]
        raise OptionError(
            f"no forecast fits into the memory; in {closest.title}, which comes closest, "
            f"{format_memory(needed_mib, closest.devices)}; allow that, or plan for other "
            "methods, more stages or smaller batches"
        )
    # Choose among the fastest, and say why.
    fastest = min(fitting, key=lambda f: f.tick_s)
    equal = [f for f in fitting if f.tick_s <= (1 + TOLERANCE) * fastest.tick_s]
    chosen = min(equal, key=lambda f: (max(f.staleness), f.peak_mib, f.tick_s))
    reason = (
        f"{chosen.speed_up:.2f} times as fast as back-propagation on one device, with "
        f"gradients up to {max(chosen.staleness):g} updates stale"
    )
    if chosen is not fastest:
        reason += (
            f" and at most {chosen.peak_mib:.0f} MiB in a stage; within {100 * TOLERANCE:g} % "
            f"of the fastest ({fastest.title}), which has {max(fastest.staleness):g} updates "
            f"and {fastest.peak_mib:.0f} MiB"
        )
    else:
        reason += (
            "; no other that is as fast has fresher gradients, or equally fresh ones and less "
            "memory"
        )
    if fastest.speed_up < 1:
        reason += ". None is faster than one device: train on one if the network fits there"
    return chosen, reason

"""Prediction of methods on a network: cut by measured times, rehearse, and forecast."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

import torch

from hocket.errors import CutError, format_problems, warn
from hocket.methods import parse_method
from hocket.methods.method import MemoryCount, Method
from hocket.methods.registry import forwards_first
from hocket.partition.costs.device import Device
from hocket.partition.costs.profile import LayerCost
from hocket.partition.costs.unevenness import warn_if_uneven
from hocket.partition.cut_points import find_cut_points
from hocket.partition.cutting import fastest_cut, measure_layers, require_enough_layers
from hocket.partition.recording.recording import TRAINING
from hocket_lab.planner.devices import ALIKE, Devices
from hocket_lab.planner.forecast import Forecast, StageProfiles, forecast
from hocket_lab.planner.rehearsals import (
    Candidate,
    CandidateProfile,
    NetworkFactory,
    Track,
    rehearse_candidates,
    rehearse_together,
)
from hocket_lab.planner.window import least_extra_delay

# Method that the others are compared with.
BASELINE = "bp"


def cut_by_time(
    build: NetworkFactory,
    counts: Sequence[int],
    methods: Sequence[str],
    devices: Devices = ALIKE,
    codec: str = Candidate.codec,
) -> list[list[Candidate]]:
    """Cut for each number of stages and each method, by measured times of layers.

    Args:
        build: Builds the network and a batch.
        counts: Numbers of stages.
        methods: Methods, each as name or name:option=value.
        devices: Devices of the stages.
        codec: Codec of the packets, which are larger without it in what the cut is chosen by.

    Returns:
        For each number of stages, a candidate for each method. Those whose stages do not fit
        into the memory are left out with a warning.

    Raises:
        CutError: The network cannot be cut into that number of stages, or nothing fits into the
            memory.
        OptionError: The devices are for another number of stages.
    """
    network, inputs, _ = build()
    graph = find_cut_points(network, inputs)
    for count in counts:
        require_enough_layers(count, graph)
    costs = measure_layers(graph)
    # A stage with a local error signal must have one tensor as its output.
    single = [
        point.name
        for point in graph.cut_points
        if len(point.keys[TRAINING]) + len(point.weights) == 1
    ]
    merged = _merge_costs(costs, single)
    local = [name for name in methods if not parse_method(name).signal.needs_gradient]
    if local and (most := max(counts)) > len(merged):
        raise CutError(
            f"cannot cut this network into {most} stages for {', '.join(local)}: a stage with "
            f"a loss of its own sends one tensor, and where one crosses, {len(merged)} stages "
            "are the most; leave these methods out, or ask for fewer stages"
        )
    names, work = list(costs), [cost.total_s for cost in costs.values()]
    candidates, too_large = [], dict[str, list[str]]()
    for of_stages in map(devices.for_stages, counts):
        fitting = []
        for name in methods:
            layers = merged if name in local else costs
            try:
                cuts = _fastest_cuts(layers, of_stages, parse_method(name).steady)
                fitting.append(Candidate(name, cuts, devices=of_stages, codec=codec))
            except CutError as error:
                too_large.setdefault(str(error), []).append(name)
        candidates.append(fitting)
        # One warning for each number of stages; unequal devices have uneven stages on purpose.
        if fitting and len({device.speed for device in of_stages}) == 1:
            freest = min(fitting, key=lambda one: one.method in local)
            warn_if_uneven(graph, work, [names.index(name) - 1 for name in freest.cuts])
    left_out = [f"{', '.join(some)}: {reason}" for reason, some in too_large.items()]
    if not any(candidates):
        raise CutError(format_problems("cannot cut this network", left_out))
    for text in left_out:
        warn(f"not planned for {text}")
    return [some for some in candidates if some]


def predict_all(
    build: NetworkFactory,
    candidates: Sequence[Candidate],
    *,
    contended: bool = False,
    track: Track = iter,
) -> list[Forecast]:
    """Forecast some candidates, all with the same number of stages.

    Args:
        build: Builds the network and a batch.
        candidates: Methods and cuts.
        contended: The stages share this machine.
        track: Iterates over what is to be rehearsed.

    Raises:
        CutError: The network cannot be cut there.
        OptionError: A stage is not compatible with a method.
        HocketError: A process of the rehearsal failed.
    """
    baselines = [Candidate(BASELINE, one.cuts, codec=one.codec) for one in candidates]
    rehearsed = list(dict.fromkeys([Candidate(BASELINE, ()), *baselines, *candidates]))
    # With contention, stages of a method that waits are idle at times, and slower afterwards.
    found = rehearse_candidates(build, rehearsed, track, with_idle=contended)
    profiles = _profiles_by_candidate(rehearsed, found)
    contended_profiles: Mapping[Candidate, StageProfiles] = {}
    if contended:
        found = rehearse_together(
            build,
            rehearsed,
            processes=len(candidates[0].cuts) + 1,
            threads=torch.get_num_threads(),
        )
        contended_profiles = _profiles_by_candidate(rehearsed, found)
    return [
        forecast(each, profiles[each], contended_profiles=contended_profiles.get(each))
        for each in candidates
    ]


def hide_link(forecasts: Sequence[Forecast]) -> list[Candidate]:
    """Return what hides the link from methods whose stages wait for packets.

    That is an extra delay. Where the stages back-propagate first in each tick, as in the papers
    of FDG and ADL, the other order hides short waits by gradients that are less late. What is
    forecast already is left out.
    """
    programs = set(map(_spelling_key, forecasts))
    hiding = []
    for waiting in filter(lambda forecast: forecast.hiding_delay, forecasts):
        asked = waiting.cuts, waiting.hiding_delay, waiting.devices, waiting.codec
        for candidate in (*_in_other_order(waiting), Candidate(waiting.method, *asked)):
            if _spelling_key(candidate) not in programs:
                programs.add(_spelling_key(candidate))
                hiding.append(candidate)
    return hiding


def _spelling_key(candidate: Candidate) -> tuple[tuple[str, ...], Method]:
    """Return a key that is equal for candidates that differ only in spelling."""
    return candidate.cuts, candidate.build_method()


def _in_other_order(forecast: Forecast) -> list[Candidate]:
    """Return the method with forwards first, if it then waits for no packet."""
    turned = forwards_first(forecast.method)
    if turned is None or any(least_extra_delay(parse_method(turned), forecast.times)):
        return []
    return [Candidate(turned, forecast.cuts, (), forecast.devices, forecast.codec)]


def _fastest_cuts(
    costs: Mapping[str, LayerCost], devices: Sequence[Device], method: Method
) -> tuple[str, ...]:
    """Return the names of the layers that begin stages, with the fastest slowest stage.

    Packets and computation overlap unless stages wait for both directions in each batch. Where
    a delay is too short for a slow link, an extra delay hides it.
    """
    names, layers = list(costs), list(costs.values())
    weights = [0, *accumulate(cost.weight_bytes for cost in layers)]
    kept = [0, *accumulate(cost.kept_bytes for cost in layers)]
    counts = [method.memory(stage, len(devices)) for stage in range(len(devices))]

    def memory_mib(stage: int, first: int, end: int) -> float:
        received = layers[first - 1].output_bytes if first else 0
        own = weights[end] - weights[first], kept[end] - kept[first]
        return stage_mib(counts[stage], *own, received)

    waits = "update" in method.locks() or method.signal.learns_from_gradient
    last_layers = fastest_cut(layers, devices, overlapping=not waits, memory_mib=memory_mib)
    return tuple(names[last + 1] for last in last_layers)


def stage_mib(
    held: MemoryCount, weight_bytes: int, kept_bytes: int, received_bytes: int
) -> float:
    """Return the memory of a stage in MiB, with gradients, a momentum and copies of versions.

    Args:
        held: Graphs, inputs and versions that the stage holds at most.
        weight_bytes: Size of its weights.
        kept_bytes: Size of what a forward keeps for its backward.
        received_bytes: Size of an input.
    """
    copies = 3 + (held.versions if held.versions > 1 else 0)
    size = copies * weight_bytes + held.graphs * kept_bytes
    return (size + (held.inputs - held.graphs) * received_bytes) / 2**20


def _profiles_by_candidate(
    rehearsed: Sequence[Candidate], profiles: Sequence[CandidateProfile]
) -> dict[Candidate, StageProfiles]:
    """Return the profiles for a forecast of each candidate, from all candidates' profiles."""
    found = dict(zip(rehearsed, profiles, strict=True))
    (uncut,) = found[Candidate(BASELINE, ())]
    return {
        candidate: StageProfiles(
            method=profile,
            backpropagation=found[Candidate(BASELINE, candidate.cuts, codec=candidate.codec)],
            uncut=uncut,
        )
        for candidate, profile in found.items()
    }


def _merge_costs(
    costs: Mapping[str, LayerCost], first_layers: Collection[str]
) -> dict[str, LayerCost]:
    """Add the cost of each layer to the first layer before it.

    >>> one = LayerCost(1.0, 2.0, output_bytes=8, kept_bytes=4, weight_bytes=2)
    >>> merged = _merge_costs({"a": one, "b": one, "c": one}, first_layers=["c"])
    >>> list(merged), merged["a"].total_s
    (['a', 'c'], 6.0)
    """
    merged: dict[str, LayerCost] = {}
    last = ""
    for name, cost in costs.items():
        if merged and name not in first_layers:
            before = merged[last]
            merged[last] = replace(
                cost,
                forward_s=before.forward_s + cost.forward_s,
                backward_s=before.backward_s + cost.backward_s,
                kept_bytes=before.kept_bytes + cost.kept_bytes,
                weight_bytes=before.weight_bytes + cost.weight_bytes,
            )
        else:
            last = name
            merged[name] = cost
    return merged

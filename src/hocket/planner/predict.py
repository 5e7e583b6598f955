"""From a network to what is expected of it: cut by times, rehearsed, forecast."""

from collections.abc import Mapping, Sequence

import torch

from hocket.partition.cut_points import find_cut_points
from hocket.partition.cutting import fastest_cut, measure_layers, require_enough_layers
from hocket.partition.link import ONE_MACHINE, Link
from hocket.partition.profile import LayerCost, merge_costs
from hocket.partition.recording import USUAL
from hocket.planner.forecast import Forecast, StageProfiles, forecast
from hocket.planner.rehearsals import (
    Build,
    Candidate,
    Stages,
    Through,
    rehearsed,
    rehearsed_together,
)
from hocket.runs.build import parse_method

# What the others are compared with.
PLAIN = "bp"


def cut_by_time(
    build: Build,
    counts: Sequence[int],
    methods: Sequence[str],
    *,
    link: Link = ONE_MACHINE,
    memory_limit_mib: float = float("inf"),
) -> list[list[Candidate]]:
    """Where to cut for each number of stages and each method, by measured times of layers.

    Args:
        build: Gives the network and a batch.
        counts: Numbers of stages.
        methods: Each as name or name:option=value.
        link: What packets go over.
        memory_limit_mib: What a stage may hold.

    Raises:
        CutError: The network cannot be cut so.
    """
    network, inputs, _ = build()
    seen = find_cut_points(network, inputs)
    for count in counts:
        require_enough_layers(count, seen)
    costs = measure_layers(seen)
    # A signal of a stage's own takes one tensor.
    single = [border.name for border in seen.cut_points if len(border.keys[USUAL]) == 1]
    ways = {True: costs, False: merge_costs(costs, single)}
    waits = {name: parse_method(name).signal.needs_gradient for name in methods}
    found = []
    for count in counts:
        cuts = {
            way: _cuts(ways[way], count, link, memory_limit_mib) for way in set(waits.values())
        }
        found.append([Candidate(name, cuts[waits[name]]) for name in methods])
    return found


def predict(
    build: Build,
    cases: Sequence[Candidate],
    *,
    link: Link = ONE_MACHINE,
    contended: bool = False,
    returns: bool = True,
    through: Through = iter,
) -> list[Forecast]:
    """What to expect of some methods, all on the same number of stages.

    Args:
        build: Gives the network and a batch.
        cases: The methods, and where they are cut.
        link: What packets go over.
        contended: Whether the stages share this machine.
        returns: Whether to rehearse there and back, against a drift of the machine's speed.
        through: Goes through what is to be rehearsed.

    Raises:
        CutError: The network cannot be cut so.
        OptionError: A stage cannot honour a method.
        HocketError: A process that rehearsed failed.
    """
    plain = [Candidate(PLAIN, case.cuts) for case in cases]
    every = list(dict.fromkeys([Candidate(PLAIN, ()), *plain, *cases]))
    # Stages that share a machine are alone where a method makes them wait, and slower after it.
    seen = rehearsed(build, every, through, with_idle=contended, returns=returns)
    alone = dict(zip(every, seen, strict=True))
    together: dict[Candidate, Stages] | None = None
    if contended:
        stages = len(cases[0].cuts) + 1
        threads = torch.get_num_threads()
        own = rehearsed_together(build, every, stages, threads, returns=returns)
        together = dict(zip(every, own, strict=True))
    return [
        forecast(
            case.method,
            parse_method(case.method),
            case.cuts,
            _scene(alone, case),
            link=link,
            together=_scene(together, case) if together is not None else None,
        )
        for case in cases
    ]


def _cuts(
    costs: Mapping[str, LayerCost], count: int, link: Link, memory_limit_mib: float
) -> tuple[str, ...]:
    """Where the stages begin whose longest is shortest."""
    names = list(costs)
    borders = fastest_cut(list(costs.values()), count, link, memory_limit_mib)
    return tuple(names[border + 1] for border in borders)


def _scene(rehearsed: Mapping[Candidate, Stages], case: Candidate) -> StageProfiles:
    plain, (whole,) = rehearsed[Candidate(PLAIN, case.cuts)], rehearsed[Candidate(PLAIN, ())]
    return StageProfiles(own=rehearsed[case], plain=plain, whole=whole)

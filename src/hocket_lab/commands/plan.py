"""``hocket plan``: rehearse a network, print forecasts, and write the plan of the best one."""

import dataclasses
import shlex
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from hocket.cli.output import messages, print_note, print_result, print_tables
from hocket.errors import OptionError, raise_problems
from hocket.options.named import split_at_commas
from hocket.runs.config import RUN_RANGES, RunConfig, plain_values, require_writable
from hocket_lab.planner.devices import ALIKE, Devices

if TYPE_CHECKING:
    from torch import nn

    from hocket.partition.plan import Plan
    from hocket.tree import Tree
    from hocket_lab.planner.forecast import Forecast
    from hocket_lab.planner.rehearsals import Candidate

BATCHES_SHOWN = 6
# Largest credible speed-up over back-propagation, divided by the number of stages. It is above
# 1 by the error of measured times.
CREDIBLE_SPEED_UP = 1.1


def plan_command(
    *,
    network: str = RunConfig.network,
    data: str = RunConfig.data,
    data_dir: Path | None = None,
    batch_size: int = 64,
    stages: str = "",
    methods: str = "fdg,adl,ddg,fr,dgl,bp",
    codec: str = RunConfig.codec,
    same_machine: bool = False,
    threads: int = 1,
    plan_out: Path | None = None,
    picture: Path | None = None,
    devices: Annotated[Devices, Parameter(name="*")] = ALIKE,
) -> int:
    """Rehearse a network on this machine and forecast each method's speed and memory.

    Layers are timed on the processor, and the network is cut by their times. Each stage of each
    method is rehearsed alone, and its program simulated with the measured times. A method whose
    stages would wait for packets is also forecast with what hides the link.

    Args:
        network: As for `hocket train`.
        data: As for `hocket train`; its shape and number of classes matter.
        data_dir: Folder with the files of the data set.
        batch_size: Number of inputs in a batch.
        stages: Numbers of stages, separated by commas; if not given, the number of devices that
            are listed, or 2,3,4.
        methods: Methods, each as name or name:option=value, separated by commas.
        codec: Codec of the packets, as for `hocket train`.
        same_machine: Let the stages share this machine with its memory and caches: they are
            rehearsed once more, in as many processes at a time as there are stages.
        threads: Number of PyTorch's threads in each stage.
        plan_out: File for the plan of the best forecast, for `hocket train --plan`.
        picture: File for a picture of its program in predicted time: .svg, .png or .pdf.
        devices: Devices of the stages.

    Raises:
        OptionError: An option is out of range, or no forecast fits into the memory.
        CutError: The network cannot be cut into that number of stages.
        HocketError: A process of the rehearsal failed.
    """
    import torch

    from hocket.partition.plan import Plan, network_signature
    from hocket_lab.planner.predict import cut_by_time, hide_link, predict_all

    # Check the options.
    names = split_methods(methods)
    stages = stages or str(devices.stages or "2,3,4")
    config = RunConfig(network=network, data=data, data_dir=data_dir, batch_size=batch_size)
    config = dataclasses.replace(config, codec=codec, threads=threads)
    _check(config, stages, names, devices, same_machine, plan_out, picture)
    names = _distinct(names)

    # Cut, rehearse and forecast.
    torch.set_num_threads(threads)
    build = partial(_build_workload, config)
    signature = network_signature(build()[0])
    counts = list(dict.fromkeys(map(int, stages.split(","))))
    predict = partial(predict_all, build, contended=same_machine, track=_track_rehearsals)
    forecasts: list[Forecast] = []
    for candidates in cut_by_time(build, counts, names, devices, codec):
        found = predict(candidates)
        hiding = hide_link(found)
        forecasts += [*found, *(predict(hiding) if hiding else [])]

    # Tell what to do.
    chosen = _print_forecasts(forecasts, same_machine=same_machine)
    if plan_out is not None:
        _write_plan(Plan(chosen.cuts, signature), config, chosen, forecasts, plan_out)
    print_result(f"train with: {_train_command(config, chosen, plan_out)}")
    if picture is not None:
        _draw_program(chosen, picture)
        print_result(f"drawn to {picture}")
    return 0


def split_methods(text: str) -> list[str]:
    """Split methods at commas; the options of a method are separated by commas too.

    >>> split_methods("fdg:shrink=0.5,linearize=live+t1(anneal=3), bp")
    ['fdg:shrink=0.5,linearize=live+t1(anneal=3)', 'bp']
    """
    from hocket.remedies.registry import split_remedies

    methods: list[str] = []
    for part in filter(None, map(str.strip, split_at_commas(text))):
        first, _ = split_remedies(part)
        if "=" in first and ":" not in first and methods:
            methods[-1] += f",{part}"
        else:
            methods.append(part)
    return methods


def _distinct(methods: Sequence[str]) -> list[str]:
    """Return methods without those that came before, perhaps written in another way."""
    from hocket.methods import parse_method
    from hocket.methods.method import Method

    names: dict[Method, str] = {}
    for name in methods:
        names.setdefault(parse_method(name), name)
    return list(names.values())


def _check(
    config: RunConfig,
    stages: str,
    methods: Sequence[str],
    devices: Devices,
    same_machine: bool,
    plan_out: Path | None,
    picture: Path | None,
) -> None:
    """Check options before anything is measured.

    Raises:
        OptionError: An option is out of range, a method or codec does not exist, a method
            cannot have that number of stages, nor the devices, or a file cannot be written.
    """
    from hocket.codecs.registry import parse_codec
    from hocket.methods import parse_method

    # Collect what is wrong by itself.
    problems = [
        f"a number of stages is {count!r}; give 2 or more"
        for count in stages.split(",")
        if not count.isdecimal() or int(count) < 2
    ]
    if not methods:
        problems.append("there are no methods; give at least one")
    built = [parse_method(name) for name in methods]
    parse_codec(config.codec)
    allowed = dataclasses.replace(RUN_RANGES["threads"], least=1)  # one number for all stages
    if config.threads not in allowed:
        problems.append(f"threads is {config.threads}; use {allowed}")
    if plan_out is not None and plan_out.suffix != ".json":
        problems.append(
            f"the plan's file is {str(plan_out)!r}; give it a name that ends in .json"
        )
    if same_machine and devices.speeds != ALIKE.speeds:
        problems.append(
            f"speeds is {devices.speeds!r}, and with same_machine all stages have the speed of "
            "this machine; give one of the two"
        )
    raise_problems(OptionError, "cannot plan", problems)
    # Check what does not fit together, and files.
    for method, count in product(built, stages.split(",")):
        method.steady.require_stages(int(count))
        devices.for_stages(int(count))
    for option, file in (("plan_out", plan_out), ("picture", picture)):
        if file is not None:
            require_writable(option, file)
    if picture is not None:
        from hocket.runs.plot import require_drawable

        require_drawable(picture)


def _build_workload(config: RunConfig) -> "tuple[nn.Module, Tree, Tree]":
    """Build the network of a configuration, and a batch of its data."""
    from hocket.runs.build import load_data, network_builder

    build_network = network_builder(config)
    data = load_data(config)
    inputs, targets = next(iter(data.train))
    return build_network(data), inputs, targets


def _track_rehearsals(candidates: "Sequence[Candidate]") -> "Iterable[Candidate]":
    """Iterate over candidates, with a progress bar, or with lines off a terminal."""
    from rich.progress import track

    if not messages.is_terminal:
        for number, candidate in enumerate(candidates, 1):
            print_note(f"rehearsing {number} of {len(candidates)}")
            yield candidate
        return
    yield from track(candidates, description="rehearsing", console=messages, transient=True)


def _print_forecasts(forecasts: "Sequence[Forecast]", *, same_machine: bool) -> "Forecast":
    """Print tables of forecasts, and return the best one that fits into the memory."""
    from hocket_lab.planner.forecast import choose_best
    from hocket_lab.planner.tables import forecast_stage_table, forecast_table

    print_tables(forecast_table(forecasts))
    if above := [one.title for one in forecasts if one.memory_used > 1]:
        print_result(
            f"Above the memory of a stage's device, and so not recommended: {'; '.join(above)}."
        )
    chosen, reason = choose_best(forecasts)
    print_result(f"Recommended: {chosen.title}, {reason}.")
    print_tables(forecast_stage_table(chosen))
    if not same_machine:
        speeds = ", ".join(f"{device.speed:g}" for device in chosen.devices)
        print_result(
            f"Assumed: {len(chosen.times)} devices with the speeds {speeds}, one for each "
            "stage; this processor has 1. --same-machine forecasts stages that share it."
        )
    if any(one.speed_up > CREDIBLE_SPEED_UP * len(one.times) for one in forecasts):
        print_result(
            "A speed-up above the number of stages is not possible: the speed of this machine "
            "has changed during the rehearsal; plan again when nothing else runs on it."
        )
    return chosen


def _write_plan(
    plan: "Plan",
    config: RunConfig,
    chosen: "Forecast",
    forecasts: "Sequence[Forecast]",
    file: Path,
) -> None:
    """Write a plan with what it was made for, its method, and all forecasts."""
    names = ("network", "data", "batch_size", "threads")
    made_for = {name: getattr(config, name) for name in names}
    plan.write(
        file,
        method=chosen.method,
        extra_delay=chosen.extra_delay,
        codec=chosen.codec,
        made_for=made_for | {"devices": plain_values(dataclasses.asdict(chosen)["devices"])},
        forecasts=[plain_values(dataclasses.asdict(forecast)) for forecast in forecasts],
    )
    print_result(f"written to {file}")


def _train_command(config: RunConfig, chosen: "Forecast", plan_out: Path | None) -> str:
    """Return the command that trains what was forecast, each stage in a process."""
    from hocket.runs.build import format_method_options

    stages = len(chosen.times)
    options = {
        "network": config.network,
        "data": config.data,
        **({"data-dir": config.data_dir} if config.data_dir is not None else {}),
        "batch-size": config.batch_size,
        "stages": stages,
        "plan": plan_out or ",".join(chosen.cuts),
        "processes": stages,
        "threads": config.threads,
    }
    written = [f"--{name} {shlex.quote(str(value))}" for name, value in options.items()]
    method = format_method_options(chosen.method, chosen.extra_delay, chosen.codec)
    return " ".join(["hocket train", *written, method])


def _draw_program(forecast: "Forecast", picture: Path) -> None:
    """Draw the program of a forecast in predicted time, once all stages are busy."""
    from hocket.runs.plot import draw_panels, timeline_panel
    from hocket_lab.planner.simulate import simulate

    method, stages = forecast.build_method(), len(forecast.times)
    first = method.delay(0, stages) + stages
    timeline = simulate(method, forecast.times, 2 * first + 2 * BATCHES_SHOWN)
    title = f"{forecast.title}, predicted"
    draw_panels([timeline_panel(timeline.window(first, BATCHES_SHOWN), title)], picture)

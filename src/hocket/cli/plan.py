"""The command that plans: measures a network, says what to expect, and writes the plan."""

import dataclasses
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

from hocket import data as datasets
from hocket.errors import OptionError, listed
from hocket.options import Named
from hocket.partition import Plan
from hocket.partition.link import ONE_MACHINE, Link
from hocket.partition.plan import network_signature
from hocket.planner.forecast import Forecast, best
from hocket.planner.predict import cut_by_time, predict
from hocket.planner.rehearsals import Candidate
from hocket.planner.simulate import simulate
from hocket.runs.build import build_network, parse_method
from hocket.runs.config import RunConfig, plain_values
from hocket.runs.plot import draw_panels, timeline_panel
from hocket.tree import Tree

SHOWN = 6  # batches in a picture
POSSIBLE = 1.1  # times the number of stages, with what is off in a measured time


def plan_command(
    *,
    network: str = "resnet20",
    data: str = "synthetic",
    data_dir: Path | None = None,
    batch_size: int = 64,
    stages: str = "2,3,4",
    methods: str = "fdg,adl,ddg,fr,dgl,bp",
    link: str = "",
    memory_limit_mib: float = float("inf"),
    same_machine: bool = False,
    threads: int = 1,
    plan_out: Path | None = None,
    picture: Path | None = None,
) -> int:
    """Rehearse a network on this machine and say what each method would make of it.

    Layers are timed and cut by their times. Then each stage of each method is rehearsed by
    itself, with its heads, synthesizers, updates and copies of weights, and the program is
    simulated with these times. Each stage is taken to have a core or device of its own, like
    the one that measures, unless the stages are to share this machine.

    Args:
        network: As for `hocket train`.
        data: As for `hocket train`; its shape and number of classes matter.
        data_dir: Where the files of the data set are.
        batch_size: Inputs in a batch.
        stages: Numbers of stages, between commas.
        methods: Each as name or name:option=value, between commas.
        link: What packets go over, such as 10Gbit,50us; processes of one machine if not given.
        memory_limit_mib: What a stage may hold: its weights three times, and what one batch keeps.
        same_machine: Whether the stages are to share this machine, and so its memory and caches: they
            are rehearsed once more, in as many processes at a time as there are stages.
        threads: Of PyTorch, in each stage.
        plan_out: Where to write the plan that it would choose, for `hocket train --plan`.
        picture: Where to draw its program in predicted time: .svg, .png or .pdf.

    Raises:
        OptionError: An option is out of range.
        CutError: The network cannot be cut so.
        HocketError: A process that rehearsed failed.
    """
    names = listed_methods(methods)
    if problems := _problems(stages, names, threads, plan_out):
        raise OptionError(listed("cannot plan", problems))
    counts = [int(count) for count in stages.split(",")]
    over = Link.parse(link) if link else ONE_MACHINE
    run = RunConfig(network=network, data=data, data_dir=data_dir, batch_size=batch_size)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        build = partial(_built, run)
        made_for = network_signature(build()[0])
        casts = cut_by_time(build, counts, names, link=over, memory_limit_mib=memory_limit_mib)
        found = [
            one
            for cases in casts
            for one in predict(build, cases, link=over, contended=same_machine, through=_shown)
        ]
    finally:
        torch.set_num_threads(before)
    chosen = _tell(found)
    if plan_out is not None:
        said = [plain_values(dataclasses.asdict(one)) for one in found]
        Plan(chosen.cuts, made_for).write(plan_out, method=chosen.method, forecasts=said)
        Console().print(f"written to {plan_out}", soft_wrap=True)
    if picture is not None:
        _draw(chosen, picture)
        Console().print(f"drawn to {picture}", soft_wrap=True)
    return 0


def _tell(found: Sequence[Forecast]) -> Forecast:
    """Print the tables; gives the one to choose."""
    console = Console()
    wide = console if console.is_terminal else Console(width=190)
    wide.print(forecast_table(found))
    chosen, why = best(found)
    count = len(chosen.times)
    console.print(
        f"I would choose {chosen.method} on {count} stages: {why}.",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )
    wide.print(stage_table(chosen))
    if any(one.speed_up > POSSIBLE * len(one.times) for one in found):
        console.print(
            "A speed-up above the number of stages is not possible: the machine was not always "
            "equally fast; plan again when nothing else is at work on it.",
            soft_wrap=True,
        )
    return chosen


def _shown(cases: Sequence[Candidate]) -> Iterable[Candidate]:
    """The cases, with a bar on a terminal."""
    console = Console(stderr=True)
    return track(
        cases,
        description="rehearsing",
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _draw(chosen: Forecast, picture: Path) -> None:
    """The program in predicted time, once all stages are at work."""
    method = parse_method(chosen.method)
    first = method.delay(0, len(chosen.times)) + len(chosen.times)
    timeline = simulate(method, chosen.times, 2 * first + 2 * SHOWN)
    title = f"{chosen.method} on {len(chosen.times)} stages, predicted"
    draw_panels([timeline_panel(timeline.window(first, SHOWN), title)], picture)


def listed_methods(text: str) -> list[str]:
    """The methods between commas, of which each may have options between commas.

    >>> listed_methods("fdg:shrink=0.5,linearize=live,bp")
    ['fdg:shrink=0.5,linearize=live', 'bp']
    """
    found: list[str] = []
    for part in filter(None, text.split(",")):
        if "=" in part and ":" not in part and found:
            found[-1] += f",{part}"
        else:
            found.append(part)
    return found


def _problems(stages: str, methods: Sequence[str], threads: int, out: Path | None) -> list[str]:
    problems = [
        f"a number of stages is {count!r}; give 2 or more"
        for count in stages.split(",")
        if not count.isdecimal() or int(count) < 2
    ]
    if not methods:
        problems.append("there are no methods; give at least one")
    for name in methods:
        parse_method(name)
    if threads < 1:
        problems.append(f"threads is {threads}; give 1 or more")
    if out is not None and out.suffix != ".json":
        problems.append(f"the plan's file is {str(out)!r}; give it a name that ends in .json")
    return problems


def _built(run: RunConfig) -> tuple[nn.Module, Tree, Tree]:
    """The network of a run, and a batch of its data."""
    chosen = Named.parse(run.data)
    data = datasets.load(
        chosen.name,
        data_dir=run.data_dir,
        batch_size=run.batch_size,
        seed=run.seed,
        **chosen.options,
    )
    inputs, targets = next(iter(data.train))
    return build_network(run, data), inputs, targets


def forecast_table(forecasts: Sequence[Forecast]) -> Table:
    """A row for each method on each number of stages; lists are of stages 0, 1, ..."""
    shown = Table(
        title="What to expect",
        caption="Of stages 0, 1, ...: seconds for a batch with an update, memory at its "
        "fullest. x: times quicker than back-propagation on one device, DDP, a pipeline.",
    )
    for title in ("stages", "method", "begin at", "seconds", "imbalance", "packets, KiB"):
        shown.add_column(title, overflow="fold", no_wrap=title == "method")
    for title in (
        "memory, MiB",
        "delay",
        "staleness",
        "tick, s",
        "x bp",
        "x ddp",
        "x pipeline",
    ):
        shown.add_column(title)
    for one in forecasts:
        shown.add_row(
            str(len(one.times)),
            one.method,
            " ".join(one.cuts),
            " ".join(f"{stage.total_s:.3g}" for stage in one.times),
            f"{one.imbalance:.1%}",
            " ".join(f"{size / 1024:.0f}" for size in one.packet_bytes),
            " ".join(f"{held.total:.1f}" for held in one.memory),
            " ".join(map(str, one.delay)),
            " ".join(f"{late:g}" for late in one.staleness),
            f"{one.tick_s:.3g}",
            f"{one.speed_up:.2f}",
            f"{one.ddp_s / one.tick_s:.2f}",
            f"{one.pipeline_s / one.tick_s:.2f}",
        )
    return shown


def stage_table(one: Forecast) -> Table:
    """A row for each stage: where it begins, its seconds, and what it holds in MiB."""
    shown = Table(title=f"{one.method} on {len(one.times)} stages, stage by stage")
    for title in ("stage", "begins at"):
        shown.add_column(title, overflow="fold")
    for title in ("forward, s", "backward, s", "update, s", "learning, s"):
        shown.add_column(title)
    for title in ("weights, MiB", "optimizer", "versions", "inputs", "graphs", "packets"):
        shown.add_column(title)
    shown.add_column("all")
    rows = zip(("(start)", *one.cuts), one.times, one.memory, strict=True)
    for k, (first, times, held) in enumerate(rows):
        seconds = (times.forward_s, times.backward_s, times.update_s, times.learn_s)
        shown.add_row(
            str(k),
            first,
            *(f"{part:.3g}" for part in seconds),
            *(f"{part:.1f}" for part in (*dataclasses.astuple(held), held.total)),
        )
    return shown

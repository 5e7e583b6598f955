"""The command that plans: measures a network, says what to expect, and writes the plan."""

import dataclasses
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from hocket import data as datasets
from hocket.cut import Plan
from hocket.cut.link import ONE_MACHINE, Link
from hocket.cut.outline import outline
from hocket.cut.plan import signature
from hocket.cut.profile import joined
from hocket.cut.recording import USUAL
from hocket.cut.stages import fastest, measured, require_enough
from hocket.errors import OptionError, listed
from hocket.named import Named
from hocket.parts import method_of, network_of
from hocket.picture import draw_panels, timeline_panel
from hocket.planner.forecast import Forecast, best, forecast
from hocket.planner.simulate import simulate
from hocket.run import Run, plain
from hocket.tree import tensors

SHOWN = 6  # batches in a picture


def plan(
    *,
    network: str = "resnet20",
    data: str = "synthetic",
    data_dir: Path | None = None,
    batch_size: int = 64,
    stages: str = "2,3,4",
    methods: str = "fdg,adl,ddg,fr,dgl,bp",
    link: str = "",
    limit_mib: float = float("inf"),
    threads: int = 1,
    out: Path | None = None,
    picture: Path | None = None,
) -> int:
    """Measure a network on this machine and say what each method would make of it.

    Each stage is taken to have a core or device of its own, like the one that measures. Heads
    and synthesizers, which some methods add to stages, are not counted.

    Args:
        network: As for `hocket train`.
        data: As for `hocket train`; its shape and number of classes matter.
        data_dir: Where the files of the data set are.
        batch_size: Inputs in a batch.
        stages: Numbers of stages, between commas.
        methods: Each as name or name:option=value, between commas.
        link: What packets go over, such as 10Gbit,50us; processes of one machine if not given.
        limit_mib: What a stage may hold: its weights three times, and what one batch keeps.
        threads: Of PyTorch, in each stage.
        out: Where to write the plan that it would choose, for `hocket train --plan`.
        picture: Where to draw its program in predicted time: .svg, .png or .pdf.

    Raises:
        OptionError: An option is out of range.
        CutError: The network cannot be cut so.
    """
    names = listed_methods(methods)
    if problems := _problems(stages, names, threads, out):
        raise OptionError(listed("cannot plan", problems))
    counts = [int(count) for count in stages.split(",")]
    over = Link.parse(link) if link else ONE_MACHINE
    run = Run(network=network, data=data, data_dir=data_dir, batch_size=batch_size)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found, made_for = _forecasts(run, counts, names, over, limit_mib)
    finally:
        torch.set_num_threads(before)
    console = Console()
    wide = console if console.is_terminal else Console(width=160)
    wide.print(table(found))
    chosen, why = best(found)
    count = len(chosen.times)
    console.print(
        f"I would choose {chosen.method} on {count} stages: {why}.",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )
    if out is not None:
        said = [plain(dataclasses.asdict(one)) for one in found]
        Plan(chosen.cuts, made_for).write(out, method=chosen.method, forecasts=said)
        console.print(f"written to {out}", soft_wrap=True)
    if picture is not None:
        _draw(chosen, picture)
        console.print(f"drawn to {picture}", soft_wrap=True)
    return 0


def _draw(chosen: Forecast, picture: Path) -> None:
    """The program in predicted time, once all stages are at work."""
    method = method_of(chosen.method)
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
    problems += [
        f"the stages of {name!r} run freely, without a program that could be simulated; leave "
        "it out, or plan 'dgl'"
        for name in methods
        if method_of(name).replay is not None
    ]
    if threads < 1:
        problems.append(f"threads is {threads}; give 1 or more")
    if out is not None and out.suffix != ".json":
        problems.append(f"the plan's file is {str(out)!r}; give it a name that ends in .json")
    return problems


def _forecasts(
    run: Run, stages: Sequence[int], methods: Sequence[str], link: Link, limit_mib: float
) -> tuple[list[Forecast], str]:
    """What to expect of every method on every number of stages, and the network's signature."""
    built = [(name, method_of(name)) for name in methods]
    chosen = Named.parse(run.data)
    data = datasets.load(
        chosen.name,
        data_dir=run.data_dir,
        batch_size=run.batch_size,
        seed=run.seed,
        **chosen.options,
    )
    network = network_of(run, data)
    inputs, _ = next(iter(data.train))
    seen = outline(network, inputs)
    for count in stages:
        require_enough(count, seen)
    costs = measured(seen)
    update_s = _update_s(network)
    # A signal of a stage's own takes one tensor.
    single = [border.name for border in seen.borders if len(border.keys[USUAL]) == 1]
    found = []
    for count, (name, method) in product(stages, built):
        mine = costs if method.signal.waits else joined(costs, single)
        borders = fastest(list(mine.values()), count, link, limit_mib)
        expected = forecast(
            name,
            method,
            mine,
            borders,
            input_bytes=sum(value.numel() * value.element_size() for value in tensors(inputs)),
            update_s=update_s,
            link=link,
        )
        found.append(expected)
    return found, signature(network)


def _update_s(network: nn.Module, repetitions: int = 7) -> float:
    """Seconds of an update of all weights by SGD with momentum, the median."""
    copies = [nn.Parameter(weight.detach().clone()) for weight in network.parameters()]
    for weight in copies:
        weight.grad = torch.zeros_like(weight)
    optimizer = torch.optim.SGD(copies, lr=0.1, momentum=0.9)
    times_s = []
    for _ in range(repetitions + 2):
        start_s = perf_counter()
        optimizer.step()
        times_s.append(perf_counter() - start_s)
    return median(times_s[2:])


def table(forecasts: Sequence[Forecast]) -> Table:
    """A row for each method on each number of stages; lists are of stages 0, 1, ..."""
    shown = Table(title="What to expect")
    for title in ("stages", "method", "begin at", "seconds", "imbalance", "packets, KiB"):
        shown.add_column(title, overflow="fold")
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
            " ".join(f"{held.total:.1f}" for held in one.held),
            " ".join(map(str, one.delay)),
            " ".join(f"{late:g}" for late in one.staleness),
            f"{one.tick_s:.3g}",
            f"{one.speed_up:.2f}",
            f"{one.ddp_s / one.tick_s:.2f}",
            f"{one.pipeline_s / one.tick_s:.2f}",
        )
    return shown

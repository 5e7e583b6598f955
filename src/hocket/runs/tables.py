"""Tables for the command line: results of a training, timelines, and all that has a name."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from rich.table import Column, Table
from rich.text import Text

from hocket import data, zoo
from hocket.data.registry import DATA
from hocket.errors import OptionError
from hocket.methods import METHODS, build_method, method_options
from hocket.methods.method import Method
from hocket.remedies import REMEDIES, remedy_options
from hocket.runs.summary import Summary
from hocket.timeline import Timeline


def summary_tables(summary: Summary) -> list[Table]:
    """Build the tables of a result; those that would be empty are left out."""
    title = f"{summary.state}: {summary.folder}"
    tables = [
        _table(title, RESULT_COLUMNS, [_result_row(summary)]),
        _table("", "weights, test loss, test error", _averaged_rows(summary)),
        _table("", STAGE_COLUMNS, _stage_rows(summary)),
        _table("", TIME_COLUMNS, _time_rows(summary)),
        _table("", "exit, test error", _exit_rows(summary)),
        _table("", "stage, compression, lost, codes in use", _codec_rows(summary)),
        _table("", RECEIVE_COLUMNS, _receive_rows(summary)),
        _table("", "stage, batches skipped", _skipped_rows(summary)),
    ]
    return [table for table in tables if table.row_count]


RESULT_COLUMNS = "epochs, training loss, test loss, test error, time, samples/s"
STAGE_COLUMNS = "stage, layers, parameters, auxiliary, delay, staleness"
TIME_COLUMNS = "stage, busy, waiting, sending, sent, peak memory"
RECEIVE_COLUMNS = "stage, not sent, arrived, drawn, reused, dropped, lost, refused, buffer"


def _table(title: str, columns: str, rows: Iterable[Sequence[str]]) -> Table:
    """Build a table of numbers from the names of its columns and its rows."""
    heads = [Column(name, justify="right") for name in columns.split(", ")]
    table = Table(*heads, title=title or None, title_justify="left")
    for row in rows:
        table.add_row(*row)
    return table


def _format(value: float | None, form: str) -> str:
    """Return a number in a form such as ".1%"; a dash for None."""
    return "-" if value is None else format(value, form)


def _result_row(summary: Summary) -> Sequence[str]:
    last = summary.epochs[-1] if summary.epochs else None
    evaluation = last.evaluation if last else None
    return (
        str(len(summary.epochs)),
        _format(last.loss if last else None, ".4f"),
        _format(evaluation.loss if evaluation else None, ".4f"),
        _format(evaluation.error if evaluation else None, ".2%"),
        f"{summary.seconds:.1f} s",
        f"{summary.samples_per_s:,.0f}",
    )


def _averaged_rows(summary: Summary) -> Iterator[Sequence[str]]:
    if (averaged := summary.averaged) is not None:
        yield "averaged", f"{averaged.loss:.4f}", _format(averaged.error, ".2%")


def _stage_rows(summary: Summary) -> Iterator[Sequence[str]]:
    for k, stage in enumerate(summary.stages):
        sizes = f"{stage.parameters:,}", f"{stage.extra_parameters:,}"
        staleness = "-" if stage.staleness is None else f"{stage.staleness:.2f} updates"
        yield str(k), str(stage.layers), *sizes, f"{stage.delay} ticks", staleness


def _time_rows(summary: Summary) -> Iterator[Sequence[str]]:
    for k, stage in enumerate(summary.stages):
        parts = (stage.busy, stage.waiting, stage.communication)
        sizes = f"{stage.sent_mib:,.1f} MiB", f"{stage.peak_mib:,.0f} MiB"
        yield str(k), *(_format(part, ".1%") for part in parts), *sizes


def _codec_rows(summary: Summary) -> Iterator[Sequence[str]]:
    for k, stage in enumerate(summary.stages):
        if stage.compression is not None:
            lost, codes = _format(stage.lost, ".1%"), _format(stage.perplexity, ".0f")
            yield str(k), f"{stage.compression:.1f} times", lost, codes


def _exit_rows(summary: Summary) -> Iterator[Sequence[str]]:
    """Yield the test errors of each head, of the network and of their ensemble."""
    evaluation = summary.epochs[-1].evaluation if summary.epochs else None
    if evaluation is None or evaluation.ensemble is None:
        return
    *heads, network = evaluation.exits
    for k, error in enumerate(heads):
        yield f"head of stage {k}", f"{error:.2%}"
    yield "network", f"{network:.2%}"
    yield "ensemble", f"{evaluation.ensemble:.2%}"


def _receive_rows(summary: Summary) -> Iterator[Sequence[str]]:
    """Yield the packets of each stage that draws from a replay buffer."""
    for k, (previous, stage) in enumerate(pairwise(summary.stages), 1):
        if (stats := stage.receive_stats) is not None:
            names = ("arrived", "drawn", "reused", "dropped", "lost", "refused")
            counts = (previous.unsent, *(getattr(stats, name) for name in names))
            buffer = f"{stats.buffer_bytes / 2**20:,.1f} MiB"
            yield str(k), *(f"{count:,}" for count in counts), buffer


def _skipped_rows(summary: Summary) -> Iterator[Sequence[str]]:
    if any(stage.skipped for stage in summary.stages):
        for k, stage in enumerate(summary.stages):
            yield str(k), f"{stage.skipped:,}"


METHOD_COLUMNS = (
    "method", "delays", "order", "linearize", "delay", "staleness", "graphs", "inputs",
    "versions", "locks", "paper",
)  # fmt: skip


def refused_methods(stages: int) -> dict[str, str]:
    """Return the methods that are refused on K stages, and why.

    >>> list(refused_methods(8))
    ['pipedream-2bw']
    """
    refused = {}
    for name in METHODS:
        try:
            build_method(name).require_stages(stages)
        except OptionError as error:
            refused[name] = str(error)
    return refused


def method_rows(stages: int) -> list[tuple[str, ...]]:
    """Return a row of :data:`METHOD_COLUMNS` for each method on K stages.

    A method that is refused on so many has no figures.

    Raises:
        OptionError: The number of stages is less than one.
    """
    if stages < 1:
        raise OptionError(f"stages is {stages}; use at least 1")
    rows: list[tuple[str, ...]] = []
    refused = refused_methods(stages)
    for name in METHODS:
        # Figures of each stage.
        method = build_method(name)
        indices = range(stages)
        memory = [method.memory(k, stages) for k in indices]
        figures = (
            " ".join(str(method.delay(k, stages)) for k in indices),
            " ".join(f"{method.staleness(k, stages):g}" for k in indices),
            " ".join(str(m.graphs) for m in memory),
            " ".join(str(m.inputs) for m in memory),
            " ".join(str(m.versions) for m in memory),
        )
        # Choices that matter only if a gradient or a graph is late.
        linearizes = method.graph_delay(0, stages) > 0
        has_late_gradient = method.signal.needs_gradient and method.delay(0, stages) > 0
        rows.append(
            (
                name,
                _format_delays(method),
                method.order if has_late_gradient else "-",
                method.linearize if linearizes else "-",
                *(("-",) * len(figures) if name in refused else figures),
                ", ".join(method.locks()) or "none",
                method.paper,
            )
        )
    return rows


def _format_delays(method: Method) -> str:
    """Format the delays of activations and of gradients or targets over an edge."""
    if method.free_running:
        return "free"
    if method.edge_delays:
        return " ".join(f"{forward},{back}" for forward, back in method.edge_delays)
    back = method.backward_delay if method.signal.expects_answer else "-"
    return f"{method.forward_delay},{back}"


def method_table(stages: int) -> Table:
    """Build the table of all methods on K stages; reasons of those refused are below it."""
    reasons = Text("\n".join(refused_methods(stages).values()))
    table = Table(
        *METHOD_COLUMNS[:-1],
        _prose("paper"),
        title=f"methods on {stages} stages",
        title_justify="left",
        caption=reasons,
        caption_justify="left",
    )
    for row in method_rows(stages):
        table.add_row(*row)
    return table


def method_markdown(stages: int) -> str:
    """Return the table of all methods as Markdown, for documents, with short references."""
    shown = [(*cells, _link_paper(paper)) for *cells, paper in method_rows(stages)]
    rows = [METHOD_COLUMNS, tuple("---" for _ in METHOD_COLUMNS), *shown]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return "\n\n".join([table, *refused_methods(stages).values()])


def _link_paper(paper: str) -> str:
    """Return the number on arXiv as a link, or the journal without the authors.

    >>> _link_paper("arXiv 1906.09108")
    '[1906.09108](https://arxiv.org/abs/1906.09108)'
    """
    return re.sub(r"arXiv (\S+)", r"[\1](https://arxiv.org/abs/\1)", paper.rpartition(", ")[2])


def option_table() -> Table:
    """Build the table of the options of each method with their defaults."""
    title = "options (method:option=value,...)"
    table = Table("method", _prose("options"), title=title, title_justify="left")
    for name in METHODS:
        table.add_row(name, _listed(method_options(name)))
    return table


def remedy_table() -> Table:
    """Build the table of the remedies: copies of weights, options, defaults and papers."""
    columns = ("remedy", _prose("effect"), "copies", _prose("options"), "paper")
    title = "remedies (method+remedy(option=value,...)+...)"
    table = Table(*columns, title=title, title_justify="left")
    for name, remedy in REMEDIES.items():
        effect = (remedy.__doc__ or "").partition("\n")[0]
        given = _listed(remedy_options(name))
        table.add_row(name, effect, f"{remedy().copies}", given, remedy.paper)
    return table


def _listed(defaults: Mapping[str, Any]) -> str:
    """Return options with their defaults; those that must be given have none."""
    return ", ".join(
        name if default is inspect.Parameter.empty else f"{name}={default}"
        for name, default in defaults.items()
    )


def network_table(names: Sequence[str]) -> Table:
    """Build the table of some networks: parameters, layers, summary and options."""
    table = _described_table("networks (network:option=value,...)", "parameters", "layers")
    for name in names:
        builder = zoo.NETWORKS[name]
        with torch.device("meta"):  # counts without memory
            network = builder()
        count = sum(weight.numel() for weight in network.parameters())
        options = {p.name: p.default for p in inspect.signature(builder).parameters.values()}
        sizes = (f"{count:,}", f"{len(network)}")
        table.add_row(name, *sizes, _summary(builder), _listed(options))
    return table


def data_table() -> Table:
    """Build the table of the data sets: whether they read files, summary and options."""
    table = _described_table("data sets (data:option=value,...)", "--data-dir")
    for name, loader in DATA.items():
        reads_files = "data_dir" in inspect.signature(loader).parameters
        known = data.options(name)
        table.add_row(name, "needed" if reads_files else "", _summary(loader), _listed(known))
    return table


def _described_table(title: str, *columns: str) -> Table:
    sizes = [Column(column, justify="right", no_wrap=True) for column in columns]
    heads = (Column("name", no_wrap=True), *sizes, _prose("summary"), _prose("options"))
    return Table(*heads, title=title, title_justify="left")


def _prose(head: str) -> Column:
    return Column(head, overflow="fold")


def _summary(function: Callable[..., Any]) -> str:
    """Return the first line of a docstring without its verb."""
    line = (function.__doc__ or "").partition("\n")[0].removesuffix(".")
    return line.split(" ", 1)[1]


def timeline_table(timeline: Timeline) -> Table:
    """Build the table of the fractions of time of each stage."""
    rows = []
    for stage, parts in timeline.fractions().items():
        recorded = (parts.busy, parts.communication, parts.waiting)
        # The sum may exceed 1 by a rounding error.
        unrecorded = max(1 - sum(recorded), 0.0)
        rows.append((str(stage), *(f"{part:.1%}" for part in (*recorded, unrecorded))))
    columns = "stage, busy, communication, waiting, unrecorded"
    return _table(f"{timeline.length_s:.4g} s", columns, rows)

"""Tables for the command line: results of a training, methods and timelines."""

from itertools import pairwise

from rich.table import Table
from rich.text import Text

from hocket.errors import OptionError
from hocket.methods import METHODS, build_method, method_options
from hocket.methods.method import Method
from hocket.remedies import REMEDIES, remedy_options
from hocket.runs.summary import Summary
from hocket.timeline import Timeline


def summary_tables(summary: Summary) -> list[Table]:
    """Build the tables of a result; those that would be empty are left out."""
    builders = (
        _result_table,
        _averaged_table,
        _stage_table,
        _time_table,
        _exit_table,
        _codec_table,
        _receive_table,
        _skipped_table,
    )
    return [table for build in builders if (table := build(summary)).row_count]


def _result_table(summary: Summary) -> Table:
    """Build the table of the result as a whole."""
    table = Table(title=f"{summary.state}: {summary.folder}", title_justify="left")
    for name in ("epochs", "training loss", "test loss", "test error", "time", "samples/s"):
        table.add_column(name, justify="right")
    last = summary.epochs[-1] if summary.epochs else None
    evaluation = last.evaluation if last else None
    table.add_row(
        str(len(summary.epochs)),
        f"{last.loss:.4f}" if last else "-",
        f"{evaluation.loss:.4f}" if evaluation else "-",
        f"{evaluation.error:.2%}" if evaluation and evaluation.error is not None else "-",
        f"{summary.seconds:.1f} s",
        f"{summary.samples_per_s:,.0f}",
    )
    return table


def _averaged_table(summary: Summary) -> Table:
    """Build the table of the evaluation of the averaged weights."""
    table = _empty_table("weights", "test loss", "test error")
    if (averaged := summary.averaged) is not None:
        error = "-" if averaged.error is None else f"{averaged.error:.2%}"
        table.add_row("averaged", f"{averaged.loss:.4f}", error)
    return table


def _stage_table(summary: Summary) -> Table:
    """Build the table of the size, delay and staleness of each stage."""
    table = _empty_table("stage", "layers", "parameters", "auxiliary", "delay", "staleness")
    for k, stage in enumerate(summary.stages):
        table.add_row(
            str(k),
            str(stage.layers),
            f"{stage.parameters:,}",
            f"{stage.extra_parameters:,}",
            f"{stage.delay} ticks",
            "-" if stage.staleness is None else f"{stage.staleness:.2f} updates",
        )
    return table


def _time_table(summary: Summary) -> Table:
    """Build the table of the time, sent data and memory of each stage."""
    table = _empty_table("stage", "busy", "waiting", "sending", "sent", "peak memory")
    for k, stage in enumerate(summary.stages):
        table.add_row(
            str(k),
            *(
                "-" if part is None else f"{part:.1%}"
                for part in (stage.busy, stage.waiting, stage.communication)
            ),
            f"{stage.sent_mib:,.1f} MiB",
            f"{stage.peak_mib:,.0f} MiB",
        )
    return table


def _codec_table(summary: Summary) -> Table:
    """Build the table of the compression of each stage that has a codec."""
    table = _empty_table("stage", "compression", "lost", "codes in use")
    for k, stage in enumerate(summary.stages):
        if stage.compression is not None:
            table.add_row(
                str(k),
                f"{stage.compression:.1f} times",
                "-" if stage.lost is None else f"{stage.lost:.1%}",
                "-" if stage.perplexity is None else f"{stage.perplexity:.0f}",
            )
    return table


def _exit_table(summary: Summary) -> Table:
    """Build the table of the test errors of each head, and of their ensemble."""
    table = _empty_table("exit", "test error")
    evaluation = summary.epochs[-1].evaluation if summary.epochs else None
    if evaluation is None or evaluation.ensemble is None:
        return table
    *heads, network = evaluation.exits
    for k, error in enumerate(heads):
        table.add_row(f"head of stage {k}", f"{error:.2%}")
    table.add_row("network", f"{network:.2%}")
    table.add_row("ensemble", f"{evaluation.ensemble:.2%}")
    return table


def _receive_table(summary: Summary) -> Table:
    """Build the table of the packets of each stage that draws from a replay buffer."""
    names = ("not sent", "arrived", "drawn", "reused", "dropped", "lost", "refused", "buffer")
    table = _empty_table("stage", *names)
    for k, (previous, stage) in enumerate(pairwise(summary.stages), 1):
        if (stats := stage.receive_stats) is not None:
            counts = (
                previous.unsent,
                stats.arrived,
                stats.drawn,
                stats.reused,
                stats.dropped,
                stats.lost,
                stats.refused,
            )
            buffer = f"{stats.buffer_bytes / 2**20:,.1f} MiB"
            table.add_row(str(k), *(f"{count:,}" for count in counts), buffer)
    return table


def _skipped_table(summary: Summary) -> Table:
    """Build the table of the batches that each stage skipped, if there are any."""
    table = _empty_table("stage", "batches skipped")
    if any(stage.skipped for stage in summary.stages):
        for k, stage in enumerate(summary.stages):
            table.add_row(str(k), f"{stage.skipped:,}")
    return table


def _empty_table(*names: str) -> Table:
    """Build a table without rows."""
    table = Table(title_justify="left")
    for name in names:
        table.add_column(name, justify="right")
    return table


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
    back = (
        method.backward_delay
        if method.signal.needs_gradient or method.signal.learns_from_gradient
        else "-"
    )
    return f"{method.forward_delay},{back}"


def method_table(stages: int) -> Table:
    """Build the table of all methods on K stages; reasons of those refused are below it."""
    reasons = Text("\n".join(refused_methods(stages).values()))
    table = Table(
        title=f"methods on {stages} stages",
        title_justify="left",
        caption=reasons,
        caption_justify="left",
    )
    for name in METHOD_COLUMNS:
        table.add_column(name, overflow="fold" if name == "paper" else "ellipsis")
    for row in method_rows(stages):
        table.add_row(*row)
    return table


def method_markdown(stages: int) -> str:
    """Return the table of all methods as Markdown, for documents."""
    rows = [METHOD_COLUMNS, tuple("---" for _ in METHOD_COLUMNS), *method_rows(stages)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return "\n\n".join([table, *refused_methods(stages).values()])


def option_table() -> Table:
    """Build the table of the options of each method with their defaults."""
    table = Table(title="options (method:option=value,...)", title_justify="left")
    table.add_column("method")
    table.add_column("options", overflow="fold")
    for name in METHODS:
        given = ", ".join(f"{key}={value}" for key, value in method_options(name).items())
        table.add_row(name, given)
    return table


def remedy_table() -> Table:
    """Build the table of the remedies: copies of weights, options, defaults and papers."""
    table = Table(title="remedies (method+remedy(option=value,...)+...)", title_justify="left")
    table.add_column("remedy")
    table.add_column("effect", overflow="fold")
    table.add_column("copies")
    table.add_column("options", overflow="fold")
    table.add_column("paper")
    for name, remedy in REMEDIES.items():
        given = ", ".join(f"{key}={value}" for key, value in remedy_options(name).items())
        effect = (remedy.__doc__ or "").partition("\n")[0]
        table.add_row(name, effect, f"{remedy().copies}", given, remedy.paper)
    return table


def timeline_table(timeline: Timeline) -> Table:
    """Build the table of the fractions of time of each stage."""
    table = Table(title=f"{timeline.length_s:.4g} s", title_justify="left")
    for name in ("stage", "busy", "communication", "waiting", "unrecorded"):
        table.add_column(name, justify="right")
    for stage, parts in timeline.fractions().items():
        recorded = (parts.busy, parts.communication, parts.waiting)
        # The sum may exceed 1 by a rounding error.
        unrecorded = max(1 - sum(recorded), 0.0)
        table.add_row(str(stage), *(f"{part:.1%}" for part in (*recorded, unrecorded)))
    return table

"""What is printed for people: the table at the end of a training, and that of the methods."""

from itertools import pairwise

from rich.table import Table

from hocket.errors import OptionError
from hocket.methods.method import Method
from hocket.methods import METHODS, build_method, method_options
from hocket.runs.summary import Summary
from hocket.timeline import Timeline


def summary_tables(summary: Summary) -> list[Table]:
    """The result as a whole, and of each stage whatever there is to say."""
    tables = (_whole, _stages, _times, _exits, _codes, _draws, _skips)
    return [table for make in tables if (table := make(summary)).row_count]


def _whole(summary: Summary) -> Table:
    """The result."""
    table = Table(title=f"{summary.state}: {summary.folder}", title_justify="left")
    for name in ("epochs", "training loss", "test loss", "test error", "time", "samples/s"):
        table.add_column(name, justify="right")
    last = summary.epochs[-1] if summary.epochs else None
    score = last.evaluation if last else None
    table.add_row(
        str(len(summary.epochs)),
        f"{last.loss:.4f}" if last else "-",
        f"{score.loss:.4f}" if score else "-",
        f"{score.error:.2%}" if score and score.error is not None else "-",
        f"{summary.seconds:.1f} s",
        f"{summary.samples_per_s:,.0f}",
    )
    return table


def _stages(summary: Summary) -> Table:
    """What each stage is."""
    table = _table("stage", "layers", "parameters", "auxiliary", "delay", "staleness")
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


def _times(summary: Summary) -> Table:
    """What each stage spent its time on, and what it took."""
    table = _table("stage", "busy", "waiting", "sending", "sent", "peak memory")
    for k, stage in enumerate(summary.stages):
        table.add_row(
            str(k),
            f"{stage.busy:.1%}",
            f"{stage.waiting:.1%}",
            f"{stage.communication:.1%}",
            f"{stage.sent_mib:,.1f} MiB",
            f"{stage.peak_mib:,.0f} MiB",
        )
    return table


def _codes(summary: Summary) -> Table:
    """What the codec made of what each stage sent, where there is one."""
    table = _table("stage", "compression", "lost", "codes in use")
    for k, stage in enumerate(summary.stages):
        if stage.compression is not None:
            table.add_row(
                str(k),
                f"{stage.compression:.1f} times",
                "-" if stage.lost is None else f"{stage.lost:.1%}",
                "-" if stage.perplexity is None else f"{stage.perplexity:.0f}",
            )
    return table


def _exits(summary: Summary) -> Table:
    """What each head gets wrong by itself, and all of them together, where there are heads."""
    table = _table("exit", "test error")
    score = summary.epochs[-1].evaluation if summary.epochs else None
    if score is None or score.ensemble is None:
        return table
    *heads, network = score.exits
    for k, error in enumerate(heads):
        table.add_row(f"head of stage {k}", f"{error:.2%}")
    table.add_row("network", f"{network:.2%}")
    table.add_row("ensemble", f"{score.ensemble:.2%}")
    return table


def _draws(summary: Summary) -> Table:
    """What became of the packets that came for each stage, where it draws from a buffer."""
    names = ("not sent", "arrived", "drawn", "reused", "dropped", "lost", "refused", "buffer")
    table = _table("stage", *names)
    for k, (before, stage) in enumerate(pairwise(summary.stages), 1):
        if (uses := stage.receive_stats) is not None:
            counts = (before.unsent, uses.arrived, uses.drawn, uses.reused, uses.dropped)
            held = f"{uses.buffer_bytes / 2**20:,.1f} MiB"
            table.add_row(str(k), *(f"{n:,}" for n in (*counts, uses.lost, uses.refused)), held)
    return table


def _skips(summary: Summary) -> Table:
    """The batches that each stage did not learn from, where there are any."""
    table = _table("stage", "batches skipped")
    if any(stage.skipped for stage in summary.stages):
        for k, stage in enumerate(summary.stages):
            table.add_row(str(k), f"{stage.skipped:,}")
    return table


def _table(*names: str) -> Table:
    """One without rows."""
    table = Table(title_justify="left")
    for name in names:
        table.add_column(name, justify="right")
    return table


METHOD_COLUMNS = (
    "method", "delays", "order", "linearize", "delay", "staleness", "graphs", "inputs",
    "versions", "locks", "paper",
)  # fmt: skip


def method_rows(stages: int) -> list[tuple[str, ...]]:
    """What every preset does on K stages: a row of :data:`METHOD_COLUMNS` each.

    Raises:
        OptionError: There is less than one stage.
    """
    if stages < 1:
        raise OptionError(f"stages is {stages}; use at least 1")
    rows: list[tuple[str, ...]] = []
    for name in METHODS:
        method = build_method(name)
        every = range(stages)
        memory = [method.memory(k, stages) for k in every]
        late = method.signal.needs_gradient and method.delay(0, stages) > 0
        rows.append(
            (
                name,
                _delays(method),
                method.order if late else "-",
                method.linearize if late else "-",
                " ".join(str(method.delay(k, stages)) for k in every),
                " ".join(f"{method.staleness(k, stages):g}" for k in every),
                " ".join(str(m.graphs) for m in memory),
                " ".join(str(m.inputs) for m in memory),
                " ".join(str(m.versions) for m in memory),
                ", ".join(method.locks()) or "none",
                method.paper,
            )
        )
    return rows


def _delays(method: Method) -> str:
    """Of activations and of what comes back over an edge."""
    if method.replay is not None:
        return "free"
    back = method.backward_delay if method.signal.needs_gradient or method.signal.learns_from_gradient else "-"
    return f"{method.forward_delay},{back}"


def method_table(stages: int) -> Table:
    """All presets on K stages."""
    table = Table(title=f"methods on {stages} stages", title_justify="left")
    for name in METHOD_COLUMNS:
        table.add_column(name, overflow="fold")
    for row in method_rows(stages):
        table.add_row(*row)
    return table


def method_markdown(stages: int) -> str:
    """The same as Markdown, for documents."""
    rows = [METHOD_COLUMNS, tuple("---" for _ in METHOD_COLUMNS), *method_rows(stages)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def option_table() -> Table:
    """The options of every preset with their defaults."""
    table = Table(title="options (method:option=value,...)", title_justify="left")
    table.add_column("method")
    table.add_column("options", overflow="fold")
    for name in METHODS:
        given = ", ".join(f"{key}={value}" for key, value in method_options(name).items())
        table.add_row(name, given)
    return table


def timeline_table(timeline: Timeline) -> Table:
    """What every stage spent its time on; the rest went unrecorded."""
    table = Table(title=f"{timeline.length_s:.4g} s", title_justify="left")
    for name in ("stage", "busy", "communication", "waiting", "rest"):
        table.add_column(name, justify="right")
    for stage, parts in timeline.fractions().items():
        spent = (parts.busy, parts.communication, parts.waiting)
        # Sums of rounded times may exceed the whole by a rounding.
        rest = max(1 - sum(spent), 0.0)
        table.add_row(str(stage), *(f"{part:.1%}" for part in (*spent, rest)))
    return table

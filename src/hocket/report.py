"""What is printed for people: the table at the end of a training, and that of the methods."""

from rich.table import Table

from hocket.errors import OptionError
from hocket.history import Score
from hocket.methods import METHODS, build, options_of
from hocket.timeline import Timeline
from hocket.train import Summary


def summary_tables(summary: Summary) -> list[Table]:
    """The result as a whole, each stage, what each spent its time on; heads, and codecs."""
    whole = Table(title=f"{summary.state}: {summary.folder}", title_justify="left")
    for name in ("epochs", "training loss", "test loss", "test error", "time", "samples/s"):
        whole.add_column(name, justify="right")
    last = summary.epochs[-1] if summary.epochs else None
    score = last.score if last else None
    whole.add_row(
        str(len(summary.epochs)),
        f"{last.loss:.4f}" if last else "-",
        f"{score.loss:.4f}" if score else "-",
        f"{score.error:.2%}" if score and score.error is not None else "-",
        f"{summary.seconds:.1f} s",
        f"{summary.samples_per_s:,.0f}",
    )
    stages = Table(title_justify="left")
    for name in ("stage", "layers", "parameters", "auxiliary", "delay", "staleness"):
        stages.add_column(name, justify="right")
    for k, stage in enumerate(summary.stages):
        stages.add_row(
            str(k),
            str(stage.layers),
            f"{stage.parameters:,}",
            f"{stage.extra_parameters:,}",
            f"{stage.delay} ticks",
            "-" if stage.staleness is None else f"{stage.staleness:.2f} updates",
        )
    times = Table(title_justify="left")
    for name in ("stage", "busy", "waiting", "sending", "sent", "peak memory"):
        times.add_column(name, justify="right")
    for k, stage in enumerate(summary.stages):
        times.add_row(
            str(k),
            f"{stage.busy:.1%}",
            f"{stage.waiting:.1%}",
            f"{stage.communication:.1%}",
            f"{stage.sent_mib:,.1f} MiB",
            f"{stage.peak_mib:,.0f} MiB",
        )
    codes = Table(title_justify="left")
    for name in ("stage", "compression", "lost", "codes in use"):
        codes.add_column(name, justify="right")
    for k, stage in enumerate(summary.stages):
        if stage.compression is not None:
            codes.add_row(
                str(k),
                f"{stage.compression:.1f} times",
                "-" if stage.lost is None else f"{stage.lost:.1%}",
                "-" if stage.perplexity is None else f"{stage.perplexity:.0f}",
            )
    return [whole, stages, times, *_exits(score), *([codes] if codes.row_count else [])]


def _exits(score: Score | None) -> list[Table]:
    """What each head gets wrong by itself, and all of them together; nothing without heads."""
    if score is None or score.ensemble is None:
        return []
    table = Table(title_justify="left")
    for name in ("exit", "test error"):
        table.add_column(name, justify="right")
    *heads, network = score.exits
    for k, error in enumerate(heads):
        table.add_row(f"head of stage {k}", f"{error:.2%}")
    table.add_row("network", f"{network:.2%}")
    table.add_row("ensemble", f"{score.ensemble:.2%}")
    return [table]


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
        method = build(name)
        every = range(stages)
        memory = [method.memory(k, stages) for k in every]
        late = method.signal.waits and method.delay(0, stages) > 0
        rows.append(
            (
                name,
                f"{method.forward_delay},{method.backward_delay}"
                if method.signal.waits or method.signal.learns
                else f"{method.forward_delay},-",
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
        given = ", ".join(f"{key}={value}" for key, value in options_of(name).items())
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

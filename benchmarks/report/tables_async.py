"""Tables of measurements of free-running stages, and of codecs."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from benchmarks.harness.record import Record
from benchmarks.report.markdown import markdown_table, mean, percent


def slowdown_table(record: Record) -> str:
    """Return a table with a line for each buffer size, and a column for each slow-down."""
    settings = record.settings
    heads = ("buffer", *(f"{factor:g} times slower" for factor in settings["factors"]))
    lines = []
    for buffer in settings["buffers"]:
        cells = []
        for factor in settings["factors"]:
            mine = [r for r in record.rows if (r["buffer"], r["factor"]) == (buffer, factor)]
            dropped = mean([row["dropped"] for row in mine], "{:.0%}")
            reused = mean([row["reused"] for row in mine], "{:.0%}")
            cells.append(f"{_format_errors(mine)}; dropped {dropped}, reused {reused}")
        lines.append((str(buffer), *cells))
    legend = (
        "Test error, mean over seeds and single seeds: {network} on {subset} images of {data}, "
        "{stages} stages that run freely, each for {epochs} epochs of its own; stage {slowed}, "
        "counted from 0, is slower than the others. Dropped: of the batches that came for it. "
        "Reused: of the batches that the next stage drew."
    ).format(**settings)
    return f"{markdown_table(heads, lines)}\n\n{legend}"


def compression_table(record: Record) -> str:
    """Return a table with a line for each codec."""
    heads = (
        "codec", "sent, KiB/sample", "compression", "lost", "codes in use", "buffers, MiB",
        "test error",
    )  # fmt: skip
    plain = fmean(row["sent_kib"] for row in record.rows if row["codec"] == "none")
    lines = []
    for codec in record.settings["codecs"]:
        mine = [row for row in record.rows if row["codec"] == codec]
        sent = fmean(row["sent_kib"] for row in mine)
        lines.append(
            (
                codec,
                f"{sent:.1f}",
                f"{plain / sent:.1f}",
                mean([row["lost"] for row in mine], "{:.1%}"),
                mean([row["perplexity"] for row in mine], "{:.0f}"),
                f"{fmean(row['buffer_mib'] for row in mine):.1f}",
                _format_errors(mine),
            )
        )
    legend = (
        "Over all edges of {stages} stages, with codebooks and targets: {network} on {subset} "
        "images of {data}, {epochs} epochs of {method}; test error: mean over seeds and single "
        "seeds."
    ).format(**record.settings)
    return f"{markdown_table(heads, lines)}\n\n{legend}"


def straggler_table(record: Record) -> str:
    """Return a table with a line for each method and slow-down."""
    settings = record.settings
    heads = ("method", "slow-down", "slow stage", "other stages", "slowest of them")
    lines = []
    for row in record.rows:
        rates = list(row["batches_per_s"])
        slow = rates.pop(settings["slowed"])
        others = fmean(rates)
        lines.append(
            (
                row["row"],
                f"{row['factor']:g} times",
                *(f"{rate:.1f}" for rate in (slow, others, min(rates))),
            )
        )
    legend = (
        "Batches that a stage learns in a second, with a process for each of {stages} stages; "
        "stage {slowed}, counted from 0, is slow. Stages are tiny, and rest {turn_s} s for "
        "each batch in the place of computing, the slow one longer."
    ).format(**settings)
    return f"{markdown_table(heads, lines)}\n\n{legend}"


def kill_recovery_table(record: Record) -> str:
    """Return a table with a line for each method and killed stage."""
    settings = record.settings
    heads = (
        "method", "killed", "learned again, by it", "by the others", "packets lost", "orphaned",
        "away, s", "others learned meanwhile", "whole training, s", "test error",
    )  # fmt: skip
    lines = []
    for method in settings["methods"]:
        for victim in (None, *settings["victims"]):
            mine = [r for r in record.rows if (r["row"], r["victim"]) == (method, victim)]
            counts = ("turns_again", "others_again", "packets_lost", "packets_orphaned")
            lines.append(
                (
                    method,
                    "nobody" if victim is None else f"stage {victim}",
                    *(mean([row[name] for row in mine], "{:.0f}") for name in counts),
                    mean([row["away_s"] for row in mine], "{:.1f}"),
                    mean([row["others_learned"] for row in mine], "{:.0f}"),
                    mean([row["seconds"] for row in mine], "{:.1f}"),
                    _format_errors(mine),
                )
            )
    legend = (
        "Means over seeds, test errors of single seeds too: {network} on {data}, {stages} "
        "processes, {epochs} epochs, checkpoints every {every} batches; a stage is killed by "
        "SIGKILL once it has learned from batch {killed_at}. Learned again: batches, or turns "
        "of a stage that runs freely. Lost: packets that were under way or in the process that "
        "was killed. Orphaned: packets of turns that the stage before has taken again. Away: "
        "from the kill until that stage learns from the next batch."
    ).format(**settings)
    return f"{markdown_table(heads, lines)}\n\n{legend}"


def _format_errors(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the mean of test errors, and each of them."""
    errors = [row["test_error"] for row in rows]
    return f"{mean(errors, '{:.2%}')} ({', '.join(map(percent, errors))})"

"""Tables of times and speeds."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from benchmarks.harness.record import Record
from benchmarks.report.goals import goals_table
from benchmarks.report.markdown import markdown_table
from hocket.errors import DataError, unknown_name

MEMORY = {"peak_mib": "process, MiB", "allocated_mib": "tensors", "by_hand_mib": "by hand"}
"""Heads of the columns of memory, by their keys in a row."""


def overhead_table(record: Record) -> str:
    """Return a table with a line for each row of the record."""
    heads = (
        "method", "linearize", "ratio", "range", "goal", "ms/sample", "plain, ms/sample",
        *MEMORY.values(), "graphs", "inputs", "versions", "extra parameters",
    )  # fmt: skip
    lines = [
        (
            row["row"],
            row["linearize"] or "-",
            f"{row['ratio']:.3f}",
            f"{row['ratio_min']:.3f} to {row['ratio_max']:.3f}",
            _format_goal(row),
            f"{1000 * row['sample_s']:.3f}",
            f"{1000 * row['plain_sample_s']:.3f}",
            *("-" if row.get(key) is None else f"{row[key]:.0f}" for key in MEMORY),
            *(str(row[count]) for count in ("graphs", "inputs", "versions")),
            f"{row['extra_parameters'] / row['parameters']:.1%}",
        )
        for row in record.rows
        if not row.get("short_steps")
    ]
    legend = (
        "Ratio: time of a step beside that of a plain PyTorch loop, median and range over "
        "pairs. MiB: memory that training adds at its peak, in the process, in its tensors, "
        "and in the tensors of a loop written by hand for the same work. Graphs, inputs, "
        "versions: what the stages are predicted to hold, summed over the stages."
    )
    more = (remedies_table(record), short_steps_table(record))
    return "\n\n".join([markdown_table(heads, lines), legend, *filter(None, more)])


def remedies_table(record: Record) -> str:
    """Return a table of the rows with remedies; nothing if the record has none."""
    rows = [row for row in record.rows if "base" in row]
    if not rows:
        return ""
    heads = ("with remedies", "without", "ratio", "range", "goal", "ms/sample", "without")
    lines = [
        (
            row["row"],
            row["base"],
            f"{row['base_ratio']:.3f}",
            f"{row['base_ratio_min']:.3f} to {row['base_ratio_max']:.3f}",
            _format_goal({"ratio": row["base_ratio"], "goal": row["base_goal"]}),
            f"{1000 * row['sample_s']:.3f}",
            f"{1000 * row['base_sample_s']:.3f}",
        )
        for row in rows
    ]
    legend = (
        "Remedies: time of a step beside that of the same method without them, which took part "
        "in the same rounds; median and range over pairs."
    )
    return f"{markdown_table(heads, lines)}\n\n{legend}"


def short_steps_table(record: Record) -> str:
    """Return a table of the rows of short steps; nothing if the record has none."""
    rows = [row for row in record.rows if row.get("short_steps")]
    if not rows:
        return ""
    heads = (
        "method and stages", "ratio", "range", "goal", "by hand, ratio", "ms/step",
        "plain, ms/step", "by hand, ms/step", "above by hand, ms", "range", "goal, ms",
    )  # fmt: skip
    lines = [
        (
            row["row"],
            f"{row['ratio']:.2f}",
            f"{row['ratio_min']:.2f} to {row['ratio_max']:.2f}",
            _format_goal(row),
            f"{row['by_hand_ratio']:.2f}",
            *(f"{row[name]:.2f}" for name in ("engine_ms", "plain_ms", "by_hand_ms")),
            f"{row['above_ms']:.2f}",
            f"{row['above_min_ms']:.2f} to {row['above_max_ms']:.2f}",
            _format_goal_above(row),
        )
        for row in rows
    ]
    legend = (
        "Short steps: a perceptron 64-256-256-256-10 on batches of 64, one thread. By hand: a "
        "loop for this method alone, with the same stages and linearization, and no checks. "
        "Above by hand: milliseconds for each stage and tick. Own forward, plain forward: the "
        "same perceptron as a network that is no chain, beside the loops of the chain; in the "
        "second case its class declares `plain_forward`. Medians over rounds in which the "
        "three loops take turns."
    )
    return f"{markdown_table(heads, lines)}\n\n{legend}"


def _format_goal_above(row: Mapping[str, Any]) -> str:
    """Return the goal for the time above a loop by hand, and if it is met."""
    goal = row["goal_above_ms"]
    if goal is None:
        return "-"
    return f"{goal:.2f} " + ("met" if row["above_ms"] <= goal else "missed")


def checkpoint_table(record: Record) -> str:
    """Return a table with a line for each row of the record."""
    heads = (
        "row", "ratio", "range", "ms/step", "checkpoints", "ticks stand still, ms", "MiB",
        "whole save, ms",
    )  # fmt: skip
    batch = record.settings["batch"]
    lines = [
        (
            row["row"],
            f"{row['ratio']:.3f}",
            f"{row['ratio_min']:.3f} to {row['ratio_max']:.3f}",
            f"{1000 * batch * row['sample_s']:.1f}",
            str(row["checkpoints"]),
            *(
                "-" if value is None else f"{value:.1f}"
                for value in (
                    row["still_s"] and 1000 * row["still_s"],
                    row["mib"],
                    row["save_s"] and 1000 * row["save_s"],
                )
            ),
        )
        for row in record.rows
    ]
    legend = (
        "{network} on batches of {batch}, {method} on {stages} stages in one process. Ratio: "
        "time of a step beside that of the same training without checkpoints, median and range "
        "over {pairs} pairs of {steps} steps in turns. Ticks stand still while the state is "
        "copied, median; a whole save is that and the writing, down to the disk."
    ).format(**record.settings)
    return f"{markdown_table(heads, lines)}\n\n{legend}"


def gpu_table(record: Record) -> str:
    """Return a table with a line for each network and row."""
    heads = (
        "network", "row", "ratio", "range", "ms/step", "ms more, stage and tick",
        "peak, MiB",
    )  # fmt: skip
    lines = [
        (
            row["network"],
            row["row"],
            f"{row['ratio']:.3f}",
            f"{row['ratio_min']:.3f} to {row['ratio_max']:.3f}",
            f"{1000 * row['batch'] * row['sample_s']:.2f}",
            f"{row['stage_tick_ms']:.3f}",
            "-" if row["peak_mib"] is None else f"{row['peak_mib']:.0f}",
        )
        for row in record.rows
    ]
    legend = (
        "On {device}. Ratio: time of a step beside that of a plain loop, median and range over "
        "{pairs} pairs of {steps} steps; stages of one process have their turns, those of "
        "several processes share the GPU. Peak: of tensors, the plain loop's among them."
    ).format(**record.settings)
    return f"{markdown_table(heads, lines)}\n\n{legend}"


def _format_goal(row: Mapping[str, Any]) -> str:
    """Return the goal, and whether it is met."""
    if row["goal"] is None:
        return "-"
    return f"{row['goal']:.2f} {'met' if row['ratio'] <= row['goal'] else 'missed'}"


def speed_table(record: Record) -> str:
    """Return a table with a line for each row of the record."""
    heads = (
        "row", "processes x threads", "samples/s", "ratio", "range", "of the limit",
        "CPU, ratio", "other threads", "sending", "waiting", "peak, MiB", "choices",
        "disturbed",
    )  # fmt: skip
    lines = [
        (
            row["row"],
            f"{row['processes']} x {row['threads']}",
            f"{row['samples_per_s']:.1f}",
            f"{row['ratio']:.2f}",
            f"{row['ratio_min']:.2f} to {row['ratio_max']:.2f}",
            f"{row['of_limit']:.2f}" if "of_limit" in row else "-",
            f"{row['cpu_ratio']:.2f}",
            f"{row['other_cpu']:.1%}",
            _format_shares(row["communication"]),
            _format_shares(row["waiting"]),
            _format_distinct(row["peak_mib"]),
            _format_choices(row["choices"]),
            str(row["disturbed"]),
        )
        for row in record.rows
    ]
    settings = record.settings
    legend = (
        "{network} on batches of {batch}, {stages} processes where several share them. Ratio: "
        "samples per second beside bp in the same round, median and range over {repetitions} "
        "rounds of {steps} steps; of the limit: the same beside independent processes, where "
        "they had their turns together. CPU: processor time of a sample in all processes, "
        "beside bp's; other threads: the part of it that is not the training's own thread, "
        "which is OpenMP's and that of messages. Sending, waiting: parts of the time of each "
        "process. Peak: of each process, without PyTorch itself. Disturbed: rounds in which "
        "others used more than {foreign:.0%} of the machine however often they were repeated."
    ).format(**settings)
    goals = goals_table(record.rows)
    return "\n\n".join([markdown_table(heads, lines), legend, *([goals] if goals else [])])


def speed_excerpt(record: Record, labels: Sequence[str]) -> str:
    """Return a short table of some rows of a record of speed.

    Args:
        record: The record.
        labels: Labels of the rows, in the order in which they are shown.

    Raises:
        DataError: The record has no such row.
    """
    rows = {row["row"]: row for row in record.rows}
    for label in labels:
        if label not in rows:
            raise DataError(unknown_name("row", label, rows))
    heads = ("row", "samples/s", "compared with bp", "range", "peak of each process, MiB")
    lines = [
        (
            row["row"],
            f"{row['samples_per_s']:.1f}",
            f"{row['ratio']:.2f} times",
            f"{row['ratio_min']:.2f} to {row['ratio_max']:.2f}",
            _format_distinct(row["peak_mib"]),
        )
        for row in map(rows.__getitem__, labels)
    ]
    legend = (
        "{network} on batches of {batch}: median and range over {repetitions} rounds of "
        "{steps} steps; peak without PyTorch itself. Measured on {date} with torch {torch} on "
        "{cpu}, {cores} cores."
    ).format(
        **record.settings,
        date=record.date[:10],
        torch=record.versions["torch"],
        cpu=record.machine["cpu"],
        cores=record.machine["cores"],
    )
    return f"{markdown_table(heads, lines)}\n\n{legend}"


def link_table(record: Record) -> str:
    """Return a table with a line for each row, and a column for each rate."""
    settings = record.settings
    rates = settings["mbit_s"]
    by_row: dict[str, dict[float, Mapping[str, Any]]] = {}
    for row in record.rows:
        by_row.setdefault(row["row"], {})[row["mbit_s"]] = row
    speeds = [f"{rate:g} Mbit/s" for rate in rates]
    heads = ("row", "nodes", *speeds, "sent, MiB/step", "choices")
    lines = []
    for label, by_rate in by_row.items():
        first = by_rate[rates[0]]
        times = [
            f"{one['ms_per_sample']:.2f} ({one['ms_min']:.2f} to {one['ms_max']:.2f})"
            for one in (by_rate[rate] for rate in rates)
        ]
        sent = f"{fmean(max(one['sent_mib']) for one in by_rate.values()):.1f}"
        choices = _format_choices(first["choices"])
        lines.append((label, str(first["processes"]), *times, sent, choices))
    legend = (
        "Milliseconds for a sample, median and range over {repetitions} rounds: {network} with "
        "{parameters:,} parameters on batches of {batch}. Two nodes of one process with "
        "{threads} thread each, joined by a link of this rate each way; a row of one node uses "
        "none. Sent: by the busier node, with all headers."
    ).format(**settings)
    return f"{markdown_table(heads, lines)}\n\n{legend}"


def _format_shares(shares: Sequence[float]) -> str:
    return ", ".join(f"{share:.0%}" for share in shares) or "-"


def _format_distinct(numbers: Sequence[float]) -> str:
    """Return the number of each process, once if all are nearly equal.

    >>> _format_distinct([300.1, 300.4]), _format_distinct([300.1, 200.0])
    ('300', '300, 200')
    """
    return ", ".join(dict.fromkeys(f"{number:.0f}" for number in numbers))


def _format_choices(choices: Mapping[str, Any]) -> str:
    """Return the choices that were made for a row, apart from its options."""
    if "cuts" in choices:
        delay = f", delay {choices['delay']}" if "delay" in choices else ""
        return f"cut at {', '.join(choices['cuts'])}{delay}"
    return ", ".join(f"{name}={value}" for name, value in choices.items()) or "-"


def startup_table(record: Record) -> str:
    """Return a table with a line for each command."""
    heads = ("command", "time, s", "ratio", "range", "processor time, s", "ratio")
    lines = [
        (
            row["row"],
            f"{row['wall_s']:.2f}",
            f"{row['ratio']:.2f}",
            f"{row['ratio_min']:.2f} to {row['ratio_max']:.2f}",
            f"{row['cpu_s']:.2f}",
            f"{row['cpu_ratio']:.2f}",
        )
        for row in record.rows
    ]
    legend = (
        "Time from the start to the end of a process; the training ends after its first "
        "action. Medians over {runs} runs with files in the page cache. Ratio: compared with "
        "`import torch` in the same round, median and range. Processor time: of all threads."
    ).format(**record.settings)
    return f"{markdown_table(heads, lines)}\n\n{legend}"

"""Tables of times, speeds and memory."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from benchmarks.harness.record import Record
from benchmarks.report.goals import goals_table
from benchmarks.report.markdown import NONE, markdown_table, milliseconds, table
from hocket.errors import DataError, unknown_name

RATIOS = (("ratio", "{ratio:.3f}"), ("range", "{ratio_min:.3f} to {ratio_max:.3f}"))
SHORT_RATIOS = (("ratio", "{ratio:.2f}"), ("range", "{ratio_min:.2f} to {ratio_max:.2f}"))


def overhead_table(record: Record) -> str:
    """Return a table with a line for each row of the record."""
    shown = table(
        [row for row in record.rows if not row.get("short_steps")],
        ("method", "{row}"),
        ("linearize", "{linearize}"),
        *RATIOS,
        ("goal", lambda row: _format_goal(row["ratio"], row["goal"])),
        ("ms/sample", milliseconds("sample_s")),
        ("plain, ms/sample", milliseconds("plain_sample_s")),
        ("process, MiB", "{peak_mib:.0f}"),
        ("tensors", "{allocated_mib:.0f}"),
        ("by hand", "{by_hand_mib:.0f}"),
        ("graphs", "{graphs}"),
        ("inputs", "{inputs}"),
        ("versions", "{versions}"),
        ("extra parameters", lambda row: f"{row['extra_parameters'] / row['parameters']:.1%}"),
    )
    legend = (
        "Ratio: time of a step beside that of a plain PyTorch loop, median and range over "
        "pairs. MiB: memory that training adds at its peak, in the process, in its tensors, "
        "and in the tensors of a loop written by hand for the same work. Graphs, inputs, "
        "versions: what the stages are predicted to hold, summed over the stages."
    )
    more = (remedies_table(record), short_steps_table(record))
    return "\n\n".join([shown, legend, *filter(None, more)])


def remedies_table(record: Record) -> str:
    """Return a table of the rows with remedies; nothing if the record has none."""
    rows = [row for row in record.rows if "base" in row]
    shown = table(
        rows,
        ("with remedies", "{row}"),
        ("without", "{base}"),
        ("ratio", "{base_ratio:.3f}"),
        ("range", "{base_ratio_min:.3f} to {base_ratio_max:.3f}"),
        ("goal", lambda row: _format_goal(row["base_ratio"], row["base_goal"])),
        ("ms/sample", milliseconds("sample_s")),
        ("without", milliseconds("base_sample_s")),
    )
    legend = (
        "Remedies: time of a step beside that of the same method without them, which took part "
        "in the same rounds; median and range over pairs."
    )
    return f"{shown}\n\n{legend}" if rows else ""


def short_steps_table(record: Record) -> str:
    """Return a table of the rows of short steps; nothing if the record has none."""
    rows = [row for row in record.rows if row.get("short_steps")]
    shown = table(
        rows,
        ("method and stages", "{row}"),
        *SHORT_RATIOS,
        ("goal", lambda row: _format_goal(row["ratio"], row["goal"])),
        ("by hand, ratio", "{by_hand_ratio:.2f}"),
        ("ms/step", "{engine_ms:.2f}"),
        ("plain, ms/step", "{plain_ms:.2f}"),
        ("by hand, ms/step", "{by_hand_ms:.2f}"),
        ("above by hand, ms", "{above_ms:.2f}"),
        ("range", "{above_min_ms:.2f} to {above_max_ms:.2f}"),
        ("goal, ms", lambda row: _format_goal(row["above_ms"], row["goal_above_ms"])),
    )
    legend = (
        "Short steps: a perceptron 64-256-256-256-10 on batches of 64, one thread. By hand: a "
        "loop for this method alone, with the same stages and linearization, and no checks. "
        "Above by hand: milliseconds for each stage and tick. Own forward, plain forward: the "
        "same perceptron as a network that is no chain, beside the loops of the chain; in the "
        "second case its class declares `plain_forward`. Medians over rounds in which the "
        "three loops take turns."
    )
    return f"{shown}\n\n{legend}" if rows else ""


def checkpoint_table(record: Record) -> str:
    """Return a table with a line for each row of the record."""
    batch = record.settings["batch"]
    shown = table(
        record.rows,
        ("row", "{row}"),
        *RATIOS,
        ("ms/step", lambda row: f"{1000 * batch * row['sample_s']:.1f}"),
        ("checkpoints", "{checkpoints}"),
        ("ticks stand still, ms", milliseconds("still_s", 1)),
        ("MiB", "{mib:.1f}"),
        ("whole save, ms", milliseconds("save_s", 1)),
    )
    legend = (
        "{network} on batches of {batch}, {method} on {stages} stages in one process. Ratio: "
        "time of a step beside that of the same training without checkpoints, median and range "
        "over {pairs} pairs of {steps} steps in turns. Ticks stand still while an earlier "
        "write ends and the state is copied, median; a whole save is the copying and the "
        "writing, down to the disk."
    ).format(**record.settings)
    return f"{shown}\n\n{legend}"


def memory_table(record: Record) -> str:
    """Return a table with a line for each method and number of stages."""
    shown = table(
        record.rows,
        ("row", "{row}"),
        ("predicted, MiB", lambda row: ", ".join(f"{mib:.1f}" for mib in row["predicted"])),
        ("measured, MiB", lambda row: ", ".join(f"{mib:.1f}" for mib in row["measured"])),
        ("together, MiB", "{together:.1f}"),
    )
    legend = (
        "Peak of all tensors of each stage; {blocks} reversible blocks and a head, batches of "
        "{batch}. Predicted by the method's counts, measured by a rehearsal of each stage. "
        "Together: in a training of all stages in one process, which share what they send."
    ).format(**record.settings)
    return f"{shown}\n\n{legend}"


def gpu_table(record: Record) -> str:
    """Return a table with a line for each network and row."""
    compared = any(row.get("same_bits") is not None for row in record.rows)
    shown = table(
        record.rows,
        ("network", "{network}"),
        ("row", "{row}"),
        *RATIOS,
        ("ms/step", lambda row: f"{1000 * row['batch'] * row['sample_s']:.2f}"),
        ("ms more, stage and tick", "{stage_tick_ms:.3f}"),
        ("peak, MiB", "{peak_mib:.0f}"),
        *([("same bits as without graphs", "{same_bits}")] if compared else []),
    )
    legend = (
        "On {device}. Ratio: time of a step beside that of a plain loop, median and range over "
        "{pairs} pairs of {steps} steps; stages of one process have their turns, those of "
        "several processes share the GPU. Peak: of tensors, the plain loop's among them."
    ).format(**record.settings)
    return f"{shown}\n\n{legend}"


def speed_table(record: Record) -> str:
    """Return a table with a line for each row of the record."""
    shown = table(
        record.rows,
        ("row", "{row}"),
        ("processes x threads", "{processes} x {threads}"),
        ("samples/s", "{samples_per_s:.1f}"),
        *SHORT_RATIOS,
        ("of the limit", "{of_limit:.2f}"),
        ("CPU, ratio", "{cpu_ratio:.2f}"),
        ("other threads", "{other_cpu:.1%}"),
        ("sending", lambda row: _format_shares(row["communication"])),
        ("waiting", lambda row: _format_shares(row["waiting"])),
        ("peak, MiB", _format_peaks),
        ("choices", _format_choices),
        ("disturbed", "{disturbed}"),
    )
    legend = (
        "{network} on batches of {batch}, {stages} processes where several share them. Ratio: "
        "samples per second beside {base} in the same round, median and range over "
        "{repetitions} rounds of {steps} steps or more; of the limit: the same beside "
        "independent processes, where they had their turns together. CPU: processor time of a "
        "sample in all processes, beside {base}'s; other threads: the part of it that is not "
        "the training's own thread, which is OpenMP's and that of messages. Sending, waiting: "
        "parts of the time of each process. Peak: of each process, without PyTorch itself. "
        "Disturbed: rounds in which others used more than {foreign:.0%} of the machine however "
        "often they were repeated."
    )
    settings: dict[str, Any] = {"base": "bp", "slow": 1.0} | record.settings
    if settings["slow"] < 1:
        legend += " The last of several processes has a speed of {slow}: signals stop it for "
        legend += "the rest of every 10 ms, whatever it does."
    judged = (settings["base"], settings["slow"]) == ("bp", 1)
    goals = goals_table(record.rows) if judged else None
    return "\n\n".join(filter(None, [shown, legend.format(**settings), goals]))


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
    shown = table(
        [rows[label] for label in labels],
        ("row", "{row}"),
        ("samples/s", "{samples_per_s:.1f}"),
        (f"compared with {record.settings.get('base', 'bp')}", "{ratio:.2f} times"),
        SHORT_RATIOS[1],
        ("peak of each process, MiB", _format_peaks),
    )
    legend = (
        "{network}, batches of {batch}: median and range over {repetitions} rounds of {steps} "
        "steps or more; peak without PyTorch. Measured on {date} with torch {torch} on {cpu}, "
        "{cores} cores."
    ).format(**record.settings | record.origin)
    return f"{shown}\n\n{legend}"


def link_table(record: Record) -> str:
    """Return a table with a line for each row, and a column for each rate."""
    by_row: dict[str, dict[float, Mapping[str, Any]]] = {}
    for row in record.rows:
        by_row.setdefault(row["row"], {})[row["mbit_s"]] = row
    rates = record.settings["mbit_s"]
    lines = []
    for label, by_rate in by_row.items():
        first = by_rate[rates[0]]
        times = [
            "{ms_per_sample:.2f} ({ms_min:.2f} to {ms_max:.2f})".format(**by_rate[rate])
            for rate in rates
        ]
        sent = f"{fmean(max(one['sent_mib']) for one in by_rate.values()):.1f}"
        lines.append((label, str(first["processes"]), *times, sent, _format_choices(first)))
    speeds = [f"{rate:g} Mbit/s" for rate in rates]
    legend = (
        "Milliseconds for a sample, median and range over {repetitions} rounds: {network} with "
        "{parameters:,} parameters on batches of {batch}. Two nodes of one process with "
        "{threads} thread each, joined by a link of this rate each way; a row of one node uses "
        "none. Sent: by the busier node, with all headers."
    ).format(**record.settings)
    heads = ("row", "nodes", *speeds, "sent, MiB/step", "choices")
    return f"{markdown_table(heads, lines)}\n\n{legend}"


def idle_link_table(record: Record) -> str:
    """Return a table with a line for each size and pause, with and without slow start."""
    shown = table(
        record.rows,
        ("message, MiB", "{mib:g}"),
        ("pause, s", "{pause_s:g}"),
        ("slow start after idle", "{slow_start:d}"),
        ("link, ms", milliseconds("least_s", 0)),
        ("median, ms", milliseconds("median_s", 0)),
        ("least", milliseconds("min_s", 0)),
        ("most", milliseconds("max_s", 0)),
    )
    legend = (
        "Milliseconds of a message, in {rounds} rounds of {messages}, over {link} with packets "
        "of 1,500 bytes, TCP with {congestion}. Slow start after idle: "
        "`net.ipv4.tcp_slow_start_after_idle`, 1 as installed. Link: the time of the bytes "
        "alone, with the latency."
    ).format(**record.settings)
    return f"{shown}\n\n{legend}"


def _format_goal(value: float, goal: float | None) -> str:
    """Return the goal, and whether it is met."""
    return NONE if goal is None else f"{goal:.2f} {'met' if value <= goal else 'missed'}"


def _format_shares(shares: Sequence[float]) -> str:
    return ", ".join(f"{share:.0%}" for share in shares) or NONE


def _format_peaks(row: Mapping[str, Any]) -> str:
    """Return the memory of each process, once if all are nearly equal."""
    return ", ".join(dict.fromkeys(f"{mib:.0f}" for mib in row["peak_mib"]))


def _format_choices(row: Mapping[str, Any]) -> str:
    """Return the choices that were made for a row, apart from its options."""
    choices = row["choices"]
    if choices.get("cuts"):
        delay = f", delay {choices['delay']}" if "delay" in choices else ""
        return f"cut at {', '.join(choices['cuts'])}{delay}"
    return ", ".join(f"{name}={value}" for name, value in choices.items()) or NONE

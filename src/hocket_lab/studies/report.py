"""Report of a study as Markdown: its table, its learning rates, and its runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from hocket.errors import OptionError
from hocket.runs.config import parse_config
from hocket_lab.studies.curve import build_read_method
from hocket_lab.studies.rows import DEFAULTS
from hocket_lab.studies.selection import HELD_OUT, RULE
from hocket_lab.studies.target import METRICS

NONE = "-"


def markdown(values: Mapping[str, Any], picture: str | None) -> str:
    """Return the report of a record, with the file of a picture next to it, if there is one."""
    settings = values["settings"]
    parts = [f"# {settings['name']}", results_with_legend(values)]
    if picture is not None:
        parts.append(f"![{settings['name']}]({picture})")
    if any(row["sweep"] for row in values["rows"]):
        parts += ["## Learning rates", _rate_table(values)]
        rule = [RULE.format(metric=f"`{settings['select']}`")]
        if share := settings.get("hold_out_for_sweep"):
            rule.append(HELD_OUT.format(share=share))
        parts.append(" ".join(rule))
    parts += ["## Runs", _run_table(values), provenance(values)]
    return "\n\n".join(parts) + "\n"


def results_with_legend(values: Mapping[str, Any]) -> str:
    """Return the table of the rows, and below it the meaning of its numbers."""
    return f"{results_table(values)}\n\n{_legend(values)}"


def results_table(values: Mapping[str, Any]) -> str:
    """Return the table of the rows: final value, updates and seconds to the target."""
    # Choose the columns.
    settings, rows = values["settings"], values["rows"]
    swept = any(row["sweep"] for row in rows)
    measured = any(row["gradient_error"] for row in rows)
    shown = [m for m in METRICS if any(row["final"][m] for row in rows)]
    metrics = sorted(shown, key=lambda metric: metric != settings["select"])
    late = [first_stage_lateness(row["options"]) for row in rows]
    shows_late = any(updates not in ("0", NONE) for updates, _ in late)
    header = ["row", *(["stale", "versions"] if shows_late else [])]
    header += [*(["learning rate"] if swept else []), *metrics]
    if settings["target"] is not None:
        header += ["reached", "updates to target", "seconds to target"]
    header += ["least cosine of gradients"] if measured else []
    # Fill them.
    lines = []
    for row, (updates, versions) in zip(rows, late, strict=True):
        cells = [_label(row), *([updates, versions] if shows_late else [])]
        if swept:
            edge = " (edge)" if row["at_edge"] else ""
            rate = row["learning_rate"]
            cells.append(NONE if rate is None else f"{rate:g}{edge}")
        cells += [format_spread(row["final"][metric], 4) for metric in metrics]
        if (goal := row["to_target"]) is not None:
            cells.append(f"{goal['reached']} of {goal['runs']}" if goal["runs"] else NONE)
            cells += [format_spread(goal["updates"], 0), format_spread(goal["seconds"], 1)]
        if measured:
            cosines = [each["cosine"] for each in row["gradient_error"]]
            cells.append(f"{min(cosines):.3f}" if cosines else NONE)
        lines.append(cells)
    return markdown_table(header, lines)


def first_stage_lateness(options: Mapping[str, Any]) -> tuple[str, str]:
    """Return staleness and versions of the weights at the first stage of a row, as text.

    A method that no longer exists has neither.
    """
    try:
        config = parse_config({**DEFAULTS, **options}, "the record")
        method = build_read_method(config)
    except OptionError:
        return NONE, NONE
    if method.free_running:
        return NONE, NONE
    staleness = method.staleness(0, config.stages)
    return f"{staleness:.3g}", str(method.memory(0, config.stages).versions)


def format_spread(spread: Mapping[str, Any] | None, digits: int) -> str:
    """Return mean and standard deviation as text, with some digits after the point.

    >>> format_spread({"mean": 1.88, "deviation": 0.012}, 3)
    '1.880 ± 0.012'
    """
    if spread is None:
        return NONE
    mean, deviation = spread["mean"], spread["deviation"]
    text = f"{mean:,.{digits}f}"
    return text if deviation is None else f"{text} ± {deviation:,.{digits}f}"


def _label(row: Mapping[str, Any]) -> str:
    """Return the label of a row, with what became of it unless it is complete."""
    note = {"complete": "", "diverged": " (diverged)", "incomplete": " (incomplete)"}
    return f"{row['row']}{note[row['state']]}"


def _legend(values: Mapping[str, Any]) -> str:
    """Return what the numbers of the table are."""
    settings = values["settings"]
    seeds = ", ".join(map(str, settings["seeds"]))
    several = len(settings["seeds"]) > 1
    over = f"Mean and standard deviation over the seeds {seeds}" if several else f"Seed {seeds}"
    text = [f"{over}, after the last epoch."]
    if any(
        first_stage_lateness(row["options"])[0] not in ("0", NONE) for row in values["rows"]
    ):
        text.append(
            "Stale: updates of the first stage between its forward of a batch and its "
            "backward, the mean; versions: most versions of its weights that graphs in flight "
            "may need, with the present one."
        )
    if settings["target"] is not None:
        text.append(
            f"The target is `{settings['target']}`: a run reaches it at its first evaluation "
            "that does, and a row has means if all of its runs do."
        )
    text.append("Seconds are those of the training, in one process, without evaluations.")
    if any(_skipped(run) for row in values["rows"] for run in row["runs"]):
        text.append(
            "Batches that were skipped, as something was NaN or infinite, are among those of "
            "the updates and the samples."
        )
    if any(row["at_edge"] for row in values["rows"]):
        text.append(
            "(edge) marks a best learning rate that is the smallest or the largest of those "
            "tried: a better one may lie beyond."
        )
    return " ".join(text)


def _rate_table(values: Mapping[str, Any]) -> str:
    """Return the table of the mean of each learning rate, the best one in bold."""
    rows = [row for row in values["rows"] if row["sweep"]]
    rates = sorted({each["learning_rate"] for row in rows for each in row["sweep"]})
    lines = []
    for row in rows:
        by_rate = {each["learning_rate"]: each for each in row["sweep"]}
        cells = [_rate_cell(by_rate.get(rate), row["learning_rate"]) for rate in rates]
        lines.append([row["row"], *cells])
    return markdown_table(["row", *(f"{rate:g}" for rate in rates)], lines)


def _rate_cell(tried: Mapping[str, Any] | None, best: float | None) -> str:
    if tried is None:
        return ""
    if tried["missing"]:
        return "missing"
    if tried["diverged"]:
        return "diverged"
    text = f"{tried['mean']:.4f}"
    return f"**{text}**" if tried["learning_rate"] == best else text


def _run_table(values: Mapping[str, Any]) -> str:
    """Return the table of all runs: what became of each, and the command that repeats it."""
    metric = values["settings"]["select"]
    lines = []
    for row in values["rows"]:
        for run in row["runs"]:
            last = run["curve"][-1] if run["curve"] else None
            value = last[metric] if last is not None else None
            share = run.get("hold_out")
            message = run["message"].partition("\n")[0].replace("|", "\\|")
            lines.append(
                [
                    row["row"] + (f", {share:.4g} held out" if share else ""),
                    NONE if run["learning_rate"] is None else f"{run['learning_rate']:g}",
                    str(run["seed"]),
                    run["state"] + _skipped(run) + (f": {message}" if message else ""),
                    NONE if value is None else f"{value:.4f}",
                    NONE if last is None else f"{last['updates']:,}",
                    NONE if last is None else f"{last['seconds']:.1f}",
                    f"`{run['command']}`",
                ]
            )
    header = ["row", "learning rate", "seed", "state", metric, "updates", "seconds", "command"]
    return markdown_table(header, lines)


def _skipped(run: Mapping[str, Any]) -> str:
    """Return a text with the number of batches that a run skipped; an empty one for none."""
    count = run["curve"][-1].get("skipped", 0) if run["curve"] else 0
    return f", {count} batch{'' if count == 1 else 'es'} skipped" if count else ""


def provenance(values: Mapping[str, Any]) -> str:
    """Return where a record comes from: date, versions, commit and machine."""
    machine, versions = values["machine"], values["versions"]
    written = (
        f"Written on {values['date'][:10]} by `{values['command']}` "
        f"{_code(values['commit'], values['dirty'])}, with torch {versions['torch']} on "
        f"{machine['cpu']}, {machine['cores']} cores."
    )
    sources = [run["source"] for row in values["rows"] for run in row["runs"] if run["curve"]]
    made = dict.fromkeys(
        f"{_code(each['commit'], each['dirty'])} with torch {each['torch']} on "
        f"{each['cpu']}{f' and {gpu}' if (gpu := each.get('gpu')) else ''}"
        for each in sources
        if each["torch"]
    )
    return f"{written} Its runs were made {'; '.join(made)}." if made else written


def _code(commit: str | None, dirty: bool | None) -> str:
    code = "outside of a checkout" if commit is None else f"at commit {commit[:12]}"
    return f"{code} with changes" if dirty else code


def markdown_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose first column is text and whose others are numbers."""
    rule = [":---", *("---:" for _ in header[1:])]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *lines))

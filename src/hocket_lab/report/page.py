"""Page of a report: its sections, its style and its script, in one file that loads nothing."""

import base64
import hashlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from hocket.errors import OptionError, RunFolderError, warn
from hocket.files import write_text_atomically
from hocket.runs.config import RunConfig
from hocket.runs.read_folder import DAMAGED
from hocket.runs.results import matching_paths
from hocket_lab.report import curves, plans, programs, rates, summaries
from hocket_lab.report.find_runs import FoundRuns, find_runs
from hocket_lab.report.groups import Group, compare_settings, group_runs
from hocket_lab.report.line_chart import line_sample
from hocket_lab.report.markup import Child, Markup, element
from hocket_lab.report.reported_run import ReportedRun


class Report:
    """Report of runs side by side, which a notebook shows as the value of a cell.

    A folder that cannot be read is left out, with a warning.

    Args:
        paths: Run folders, folders of them, folders of studies, or patterns such as ``runs/*``.

    Raises:
        RunFolderError: There is no run that can be read.
    """

    def __init__(self, *paths: Path | str) -> None:
        self._page, found = build_fitting_page(find_runs(matching_paths(*paths)))
        for reason in found.left_out:
            warn(f"left out: {reason}")

    def _repr_html_(self) -> Markup:
        sandbox = "allow-scripts allow-downloads"  # its script does not reach the notebook
        style = "width: 100%; height: 80vh; border: 0"
        return element("iframe", srcdoc=self._page, sandbox=sandbox, style=style)


def write_report(found: FoundRuns, file: Path) -> FoundRuns:
    """Write the report of runs as one HTML file.

    Returns:
        The runs that are in the report, and what was left out.

    Raises:
        OptionError: The file cannot be written.
        RunFolderError: There is no run that a page can be built of.
    """
    page, shown = build_fitting_page(found)
    try:
        write_text_atomically(file, page)
        return shown
    except OSError as error:
        raise OptionError(
            f"cannot write the report to {str(file)!r}: {error.strerror}; name another file "
            "with --out"
        ) from error


def build_fitting_page(found: FoundRuns, version: str | None = None) -> tuple[str, FoundRuns]:
    """Build the page without the runs whose strange values let no page be built.

    The version is as for `build_page`.

    Returns:
        The page, and what it shows and leaves out.

    Raises:
        RunFolderError: There is no run that a page can be built of.
    """
    try:
        return build_page(found, version), found
    except DAMAGED as error:
        reason = f"{type(error).__name__}: {error}"
    runs = list(found.runs)
    # The shortest beginning of the list of which there is no page ends with such a run.
    position = bisect_left(range(1, len(runs)), True, key=lambda n: not _has_page(runs[:n]))
    folder = str(runs.pop(position).folder)
    left_out = (*found.left_out, f"cannot show the run in {folder!r} ({reason})")
    if not runs:
        raise RunFolderError(f"there is no run to report: {'; '.join(left_out)}")
    return build_fitting_page(replace(found, runs=runs, left_out=left_out), version)


def _has_page(runs: Sequence[ReportedRun]) -> bool:
    try:
        return bool(build_page(FoundRuns(runs, ())))
    except DAMAGED:
        return False


def build_page(found: FoundRuns, version: str | None = None) -> str:
    """Build the page, which holds no date and no random name: equal runs, equal pages.

    Args:
        found: The runs, and what was left out.
        version: State of the files that the runs were read from, for a page that is loaded
            again once its server tells another; None for a page that stays.
    """
    groups = group_runs(found.runs)
    title, subtitle = _titles(found)
    style, script = _read("page.css"), _read("page.js")
    if version is not None:
        script = Markup(script + _read("follow.js"))
    # Nothing is loaded, and nothing runs but this script: run folders may be of unknown origin.
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    if version is not None:
        policy += "; connect-src 'self'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="version", content=version) if version is not None else None,
        element("title", f"Hocket: {title}"),
        element("style", style),
    )
    ended = "hocket watch has ended, and this page stays as it is."
    note = element("p", ended, class_="note", id="follow", hidden="")
    main = element(
        "main",
        note if version is not None else None,
        _header(found, groups, title, subtitle),
        list(_sections(found, groups)),
    )
    body = element("body", main, element("script", script))
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _titles(found: FoundRuns) -> tuple[str, str]:
    """Return the title, which names the studies if all runs are theirs, and a subtitle."""
    count = f"{len(found.runs)} run{'s' if len(found.runs) > 1 else ''}"
    folders = [study.folder for study in found.studies]
    subjects = {f"{run.config.network} on {run.config.data}" for run in found.runs}
    subtitle = subjects.pop() if len(subjects) == 1 else ""
    if any(run.folder.resolve().parent.parent not in folders for run in found.runs):
        return count, subtitle
    title = ", ".join(study.name for study in found.studies)
    return title, f"{count}, {subtitle}" if subtitle else count


def _describe_data(config: RunConfig) -> str:
    """Return the data of a run, with what decides on which of them it is evaluated."""
    folder = f" of {config.data_dir}" if config.data_dir is not None else ""
    held_out = f", {config.hold_out:g} held out" if config.hold_out else ""
    return f"{config.data}{folder}{held_out}"


def _header(found: FoundRuns, groups: Sequence[Group], title: str, subtitle: str) -> Markup:
    """Build the title, notes on what is missing, and the legend, which hides groups."""
    data = sorted({_describe_data(run.config) for run in found.runs})
    notes = [f"Left out: {reason}" for reason in found.left_out]
    if len(data) > 1:
        names = ", ".join(data)
        notes.append(
            f"The runs have different data ({names}): compare errors of equal data only."
        )
    legend = [
        element(
            "button",
            line_sample(group.number),
            f"{group.label} ({len(group.runs)})" if len(group.runs) > 1 else group.label,
            type="button",
            data_toggle=group.number,
            data_digest=group.digest,
            aria_pressed="true",
        )
        for group in groups
    ]
    return element(
        "header",
        element("button", "light / dark", type="button", id="theme"),
        element("h1", title, element("small", subtitle) if subtitle else None),
        [element("p", note, class_="note") for note in notes],
        element("nav", legend, class_="legend", aria_label="curves shown"),
    )


def _sections(found: FoundRuns, groups: Sequence[Group]) -> Iterator[Markup]:
    """Yield the sections that have any content."""
    yield _section("Results", summaries.sortable_results(groups))
    settings = compare_settings(groups)
    differing = [setting for setting in settings if setting.differs]
    equal = [setting for setting in settings if not setting.differs]
    if differing:
        yield _section("Settings that differ", summaries.settings_table(groups, differing))
    rate_charts = rates.rate_charts(found.studies, groups)
    if charts := [*curves.learning_curves(groups), *rate_charts]:
        text = (
            "A thick line is the mean over seeds, up to the end of the shortest run; thin "
            "lines are runs, and an area lies between their least and their greatest value."
        )
        several = any(len(group.runs) > 1 for group in groups)
        note = element("p", text) if several else None
        yield _section("Loss and error", note, curves.chart_grid(charts))
    if charts := [*curves.stage_charts(groups), *curves.batch_losses(groups)]:
        yield _section("Stages and batches", curves.chart_grid(charts))
    if charts := curves.gradient_errors(groups):
        text = "A cosine of 1 means that the late gradient points in the true direction."
        yield _section("Gradient error", element("p", text), curves.chart_grid(charts))
    if (table := summaries.stages_table(groups)) is not None:
        yield _section("Time and memory of stages", table)
    if comparison := plans.plan_comparison(groups):
        yield _section("Plan and outcome", comparison)
    if pictures := programs.program_pictures(groups):
        yield _section("Programs", pictures)
    if pictures := programs.timeline_pictures(found.runs):
        yield _section("Timelines", pictures)
    yield _section("Runs", summaries.runs_table(groups))
    if equal:
        table = summaries.settings_table(groups[:1], equal)
        yield _section("Settings that are equal", table, class_="equal")


def _section(title: str, *content: Child, class_: str | None = None) -> Markup:
    return element("section", element("h2", title), content, class_=class_)


def _read(name: str) -> Markup:
    """Return a file of this package, which goes into the page as it is."""
    return Markup(files("hocket_lab.report").joinpath(name).read_text(encoding="utf-8"))


def _digest(text: str) -> str:
    """Return the digest by which a content security policy allows a style or a script."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"

"""Sections of a report with pictures: programs of methods, and timelines of runs."""

import math
from collections.abc import Sequence
from pathlib import Path

from hocket.errors import DataError, HocketError, OptionError
from hocket.files import JSON_LIMIT
from hocket.program.program import unroll
from hocket.runs.config import RunConfig
from hocket.runs.plot import program_panel, timeline_panel
from hocket.runs.run_dir import TIMELINE
from hocket.timeline import Timeline
from hocket_lab.report.groups import Group
from hocket_lab.report.markup import Markup, element
from hocket_lab.report.reported_run import ReportedRun
from hocket_lab.report.span_picture import first_spans, span_picture
from hocket_lab.studies.curve import build_read_method

LEAST_BATCHES, MOST_BATCHES = 6, 24
"""Limits of the batches in the picture of a program."""
MOST_STAGES = 64
"""Most stages in the picture of a program; a run file may name any number."""


def program_pictures(groups: Sequence[Group]) -> list[Markup]:
    """Draw the program of each method, once for groups that have the same one."""
    titles: dict[str, RunConfig] = {}
    for group in groups:
        titles.setdefault(_program_title(group.config), group.config)
    return [
        markup
        for title, config in titles.items()
        for markup in (element("h3", title), _draw_program(config, title))
    ]


def _program_title(config: RunConfig) -> str:
    """Return the title of a program, which is the same for those that are the same."""
    title = f"{config.method} on {config.stages} stage{'s' if config.stages > 1 else ''}"
    if config.extra_delay not in (0, "0"):
        title += f", extra delay {config.extra_delay}"
    if config.staleness != "none":
        title += f", staleness {config.staleness}"
    return title


def timeline_pictures(runs: Sequence[ReportedRun]) -> list[Markup]:
    """Draw the timelines that runs have recorded, or say why one is not shown."""
    pictures: list[Markup] = []
    for run in runs:
        if not run.config.record_timeline:
            continue
        pictures.append(element("h3", run.name))
        try:
            timeline, note = first_spans(_read_timeline(run.folder / TIMELINE))
        except HocketError as error:
            pictures.append(element("p", str(error), class_="note"))
            continue
        name = f"timeline of {run.name}"
        pictures.append(span_picture(timeline_panel(timeline, name), name))
        if note:
            pictures.append(element("p", note, class_="note"))
    return pictures


def _draw_program(config: RunConfig, title: str) -> Markup:
    """Draw the program of a configuration, or say why it has none."""
    try:
        method = build_read_method(config)
        if method.free_running:
            return element("p", "No program: its stages run freely.", class_="note")
        if config.stages > MOST_STAGES:
            text = f"No program: {config.stages} stages are more than {MOST_STAGES} to draw."
            return element("p", text, class_="note")
        # Until the first batches have returned, and with whole groups of accumulated gradients.
        returned = method.delay(0, config.stages) + LEAST_BATCHES
        batches = max(math.ceil(returned / method.accumulate), 2) * method.accumulate
        ticks = list(unroll(method, config.stages, min(batches, MOST_BATCHES)))
    except HocketError as error:
        return element("p", f"No program: {error}", class_="note")
    return span_picture(program_panel(ticks, config.stages, title), f"program of {title}")


def _read_timeline(file: Path) -> Timeline:
    """Read the timeline of a run.

    Raises:
        DataError: It is missing, too long or damaged.
        OptionError: It has no batches, or none that took time.
    """
    # A run folder of unknown origin may name a pipe or a device.
    if not file.is_file():
        raise DataError(f"there is no timeline {str(file)!r}; a run that ends well has one")
    if (size := file.stat().st_size) > JSON_LIMIT:
        raise DataError(
            f"the timeline {str(file)!r} has {size} bytes, and at most {JSON_LIMIT} are read; "
            "open it with https://ui.perfetto.dev"
        )
    timeline = Timeline.read(file)
    if not (timeline.batches and any(span.end_s > span.start_s for span in timeline.spans)):
        raise OptionError(
            f"the timeline {str(file)!r} has no batches, or none that took time; record it "
            "again"
        )
    return timeline

"""Picture of a program or a timeline, with a row for each stage, to be zoomed by a script."""

import json

from hocket.runs.plot import Panel
from hocket.timeline import Span, Timeline
from hocket.timeline.recorder import KIND_NAMES
from hocket_lab.report.markup import Markup, element

ROW = 30
"""Height of a row in pixels."""
LENGTH = 1e6
"""Length of a picture in its own coordinates; browsers draw none beyond 2**25."""
AXIS = 22
"""Height of the axis of seconds in pixels."""
MOST_SPANS = 3000
"""Spans that are drawn of a timeline; more would make the page slow and large."""


def span_picture(panel: Panel, name: str) -> Markup:
    """Draw the spans of a timeline as boxes, to be zoomed and moved.

    The name is for those who do not see the picture.
    """
    # Boxes of the spans.
    timeline, measured = panel.timeline, panel.measured
    spans = timeline.flatten().spans
    start_s = spans[0].start_s
    scale = LENGTH / (timeline.length_s or 1.0)
    rows = {stage: row for row, stage in enumerate(timeline.stages)}
    boxes = [_box(span, start_s, scale, rows[span.stage], panel.label(span)) for span in spans]
    kinds = [kind for kind in KIND_NAMES if any(span.kind == kind for span in spans)]
    # Buttons and names around them.
    height = ROW * len(rows)
    buttons = [
        element("button", text, type="button", data_zoom=action, aria_label=label)
        for action, text, label in (
            ("in", "+", "zoom in"), ("out", "\N{MINUS SIGN}", "zoom out"),
            ("left", "◀", "move to the left"), ("right", "▶", "move to the right"),
            ("all", "all", "show all"),
        )
    ]  # fmt: skip
    legend = [element("span", KIND_NAMES[kind], class_=f"key {kind}") for kind in kinds]
    names = [element("span", f"stage {stage}") for stage in rows]
    # The view of both, which the script zooms.
    view = element(
        "div",
        element(
            "svg",
            boxes,
            class_="boxes",
            viewBox=f"0 0 {LENGTH:.0f} {len(rows)}",
            preserveAspectRatio="none",
            width="100%",
            height=height,
        ),
        element("svg", class_="labels", width="100%", height=height + AXIS * measured),
        class_="view",
        tabindex=0,
        role="img",
        aria_label=name,
        data_length=LENGTH,
        data_stages=json.dumps(list(rows)),
        data_microseconds=repr(timeline.length_s * 1e6) if measured else None,
    )
    return element(
        "div",
        element("div", element("span", buttons, class_="buttons"), legend, class_="tools"),
        element("div", element("div", names, class_="names"), view, class_="lanes"),
        element("output"),
        class_="spans",
    )


def first_spans(timeline: Timeline) -> tuple[Timeline, str]:
    """Return the beginning of a timeline that can be drawn, and a note on the rest, if any."""
    count = len(timeline.spans)
    if count <= MOST_SPANS:
        return timeline, ""
    first, last = timeline.batches[0], timeline.batches[-1]
    batches = max(1, (last - first + 1) * MOST_SPANS // count)
    note = (
        f"These are the first {batches} of {last - first + 1} batches; "
        "`hocket draw --timeline` draws others."
    )
    return timeline.window(first, batches), note


def _box(span: Span, start_s: float, scale: float, row: int, label: str) -> Markup:
    """Draw a span in a row, which is 1 unit high; the scale is the length of a second."""
    x, end = (round((time_s - start_s) * scale, 1) for time_s in (span.start_s, span.end_s))
    return element(
        "rect", x=x, y=row + 0.08, width=round(end - x, 1), height=0.84, class_=span.kind,
        data_label=label,
    )  # fmt: skip

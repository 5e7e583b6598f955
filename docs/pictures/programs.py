"""Draws the programs that the documents show: why.svg and late.svg.

``python docs/pictures/programs.py`` writes them again. They show the programs that the
engines execute.
"""

from pathlib import Path

from hocket import BP, FDG, Method, unroll
from hocket.runs.plot import layout_program
from hocket.timeline import Span

STAGES, BATCHES, LENGTH = 3, 24, 31.0  # in forwards
LEFT, TOP, UNIT, ROW = 84, 30, 27, 28  # pixels
WIDTH, PANEL = LEFT + LENGTH * UNIT + 12, TOP + STAGES * ROW
COLOURS = {"F": "#7fb2dd", "B": "#f4a259", "U": "#8cc084"}


def why_picture() -> str:
    """Return back-propagation above FDG in the steady state, with one time axis."""
    fdg = "FDG: no stage waits"
    return svg(
        2 * PANEL + 52,
        *panel(BP(), "Back-propagation: each stage waits for all the others", 0, first=0),
        *panel(FDG(), fdg, PANEL + 14, first=4),
        *legend(2 * PANEL + 34),
    )


def late_picture() -> str:
    """Return FDG with the way of one batch, and the updates that make its gradient late."""
    title = "FDG: the way of batch 6, and the updates of stage 0 before its gradient is back"
    return svg(PANEL + 36, *panel(FDG(), title, 0, first=4, followed=6), *legend(PANEL + 18))


def svg(height: float, *lines: str) -> str:
    """Return a picture of these elements."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {height}" '
        'font-family="system-ui, sans-serif" font-size="13" fill="#222">'
    )
    background = '<rect width="100%" height="100%" rx="8" fill="#fff"/>'
    return "\n".join([head, background, *lines, "</svg>"]) + "\n"


def panel(
    method: Method, title: str, top: float, first: int, followed: int | None = None
) -> list[str]:
    """Return the rows of a method in its steady state, from the forward of a batch on.

    Args:
        method: The method.
        title: Text above the rows.
        top: Upper end in pixels.
        first: Batch that stage 0 forwards at the left end.
        followed: Batch whose way is shown; the others are pale. None shows all.
    """
    spans = layout_program(list(unroll(method, STAGES, BATCHES)), STAGES).spans
    start = min(s.start_s for s in spans if (s.kind, s.stage, s.batch) == ("F", 0, first))
    shown = [s for s in spans if start <= s.start_s and s.end_s <= start + LENGTH]
    # Say how many batches were trained, or how many updates made a gradient late.
    trained = {s.batch for s in shown if (s.kind, s.stage) == ("B", 0)}
    late = updates_before_backward(shown, followed)
    told = (
        f"{len(trained)} batches trained" if followed is None else f"{len(late)} updates late"
    )
    lines = [
        f'<text x="12" y="{top + 21}" font-weight="600">{title}</text>',
        f'<text x="{WIDTH - 12}" y="{top + 21}" text-anchor="end">{told}</text>',
    ]
    # A grey row for each stage, and a box for each action.
    for stage in range(STAGES):
        y = top + TOP + stage * ROW
        lines += [
            f'<text x="12" y="{y + 17}" font-size="12">stage {stage}</text>',
            f'<rect x="{LEFT}" y="{y}" width="{LENGTH * UNIT}" height="{ROW - 4}" '
            'fill="#f1f1f1"/>',
        ]
    for s in shown:
        x, y = LEFT + (s.start_s - start) * UNIT, top + TOP + s.stage * ROW
        width = (s.end_s - s.start_s) * UNIT
        bold = followed is None or (s.batch == followed and s.kind != "U")
        bold = bold or s in late
        pale = "" if bold else ' opacity="0.25"'
        lines.append(
            f'<rect x="{x:.1f}" y="{y}" width="{width - 1:.1f}" height="{ROW - 4}" '
            f'fill="{COLOURS[s.kind]}"{pale}/>'
        )
        if s.kind != "U":
            lines.append(
                f'<text x="{x + width / 2:.1f}" y="{y + 17}" font-size="12" '
                f'text-anchor="middle"{pale}>{s.batch}</text>'
            )
    return lines


def updates_before_backward(spans: list[Span], batch: int | None) -> list[Span]:
    """Return the updates of stage 0 between the forward of a batch and its backward."""
    mine = {s.kind: s for s in spans if s.batch == batch and s.stage == 0}
    if not {"F", "B"} <= mine.keys():
        return []
    between = (mine["F"].end_s, mine["B"].start_s)
    return [
        s
        for s in spans
        if (s.kind, s.stage) == ("U", 0) and between[0] <= s.start_s < between[1]
    ]


def legend(y: float) -> list[str]:
    """Return the meaning of the colours, and the direction of time."""
    names = {"F": "forward of a batch", "B": "its backward", "U": "update", "idle": "idle"}
    lines, x = [], LEFT
    for kind, name in names.items():
        colour = COLOURS.get(kind, "#f1f1f1")
        lines += [
            f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{colour}"/>',
            f'<text x="{x + 18}" y="{y}" font-size="12">{name}</text>',
        ]
        x += 40 + 7 * len(name)
    return [
        *lines,
        f'<text x="{WIDTH - 12}" y="{y}" font-size="12" text-anchor="end">time →</text>',
    ]


PICTURES = {"why.svg": why_picture, "late.svg": late_picture}

if __name__ == "__main__":
    for name, picture in PICTURES.items():
        (Path(__file__).parent / name).write_text(picture())

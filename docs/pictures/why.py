"""Draws why.svg: back-propagation above FDG on three stages, with one time axis.

``python docs/pictures/why.py`` writes it again. The actions are those of the programs that the
engines execute.
"""

from pathlib import Path

from hocket import BP, FDG, Method, unroll
from hocket.runs.plot import layout_program

STAGES, BATCHES, LENGTH = 3, 24, 31.0  # in forwards
LEFT, TOP, UNIT, ROW = 84, 30, 27, 28  # pixels
COLOURS = {"F": "#7fb2dd", "B": "#f4a259", "U": "#8cc084"}


def why_picture() -> str:
    """Return the picture as SVG."""
    height = 2 * (TOP + STAGES * ROW) + 52
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + LENGTH * UNIT + 12:.0f} '
        f'{height}" font-family="system-ui, sans-serif" font-size="13" fill="#222">',
        '<rect width="100%" height="100%" rx="8" fill="#fff"/>',
        *panel(BP(), "Back-propagation: each stage waits for all the others", 0, first=0),
        *panel(FDG(), "FDG: no stage waits", TOP + STAGES * ROW + 14, first=4),
        *legend(height - 18),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def panel(method: Method, title: str, top: float, first: int) -> list[str]:
    """Return the rows of a method from the forward of a batch on, in its steady state."""
    spans = layout_program(list(unroll(method, STAGES, BATCHES)), STAGES).spans
    start = min(s.start_s for s in spans if (s.kind, s.stage, s.batch) == ("F", 0, first))
    shown = [s for s in spans if start <= s.start_s and s.end_s <= start + LENGTH]
    trained = len({s.batch for s in shown if (s.kind, s.stage) == ("B", 0)})
    lines = [
        f'<text x="12" y="{top + 21}" font-weight="600">{title}</text>',
        f'<text x="{LEFT + LENGTH * UNIT}" y="{top + 21}" text-anchor="end">'
        f"{trained} batches trained</text>",
    ]
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
        lines.append(
            f'<rect x="{x:.1f}" y="{y}" width="{width - 1:.1f}" height="{ROW - 4}" '
            f'fill="{COLOURS[s.kind]}"/>'
        )
        if s.kind != "U":
            lines.append(
                f'<text x="{x + width / 2:.1f}" y="{y + 17}" font-size="12" '
                f'text-anchor="middle">{s.batch}</text>'
            )
    return lines


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
    end = LEFT + LENGTH * UNIT
    return [*lines, f'<text x="{end}" y="{y}" font-size="12" text-anchor="end">time →</text>']


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(why_picture())

"""Draws expect.svg: the final test loss of a GPT over the delay of its gradients.

``python docs/pictures/expect.py`` writes it again from ``records/gpt-characters-2000``.
"""

import json
from pathlib import Path

from hocket.methods import parse_method

RECORD = Path(__file__).parents[2] / "records/gpt-characters-2000/record.json"
# Labels of the rows that are shown, and where they stand: a delay and a loss.
SHOWN = {
    ("bp", 1): ("back-propagation", 0.9, 1.735),
    ("paci:accumulate=4+predict", 2): ("PACI with predicted weights, 2 stages", 0.9, 1.79),
    ("adl:accumulate=12+predict", 4): ("ADL with predicted weights, 4 stages", 0.9, 1.845),
    ("paci:accumulate=2+predict", 2): ("PACI, fewer batches in an update", 0.9, 1.90),
    ("ddg+predict", 4): ("DDG with predicted weights, 4 stages", 3.15, 1.97),
    ("fdg+predict", 4): ("FDG with predicted weights, 4 stages", 3.05, 2.15),
}
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 930, 250, 62, 34, 46  # pixels
MOST_LATE, LOSSES = 5.1, (1.70, 2.20)


def expect_picture() -> str:
    """Return the picture as SVG."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="13" fill="#222">',
        '<rect width="100%" height="100%" rx="8" fill="#fff"/>',
        '<text x="12" y="21" font-weight="600">Test loss after 2,000 updates</text>',
        f'<text x="{WIDTH - 12}" y="{HEIGHT - 10}" text-anchor="end">'
        "updates by which the first stage's gradients are late, on average</text>",
    ]
    for loss in (1.8, 1.9, 2.0, 2.1):
        lines += [
            f'<line x1="{LEFT}" x2="{WIDTH - 12}" y1="{y_of(loss)}" y2="{y_of(loss)}" '
            'stroke="#e4e4e4"/>',
            f'<text x="{LEFT - 10}" y="{y_of(loss) + 4}" text-anchor="end">{loss}</text>',
        ]
    for late in range(6):
        lines.append(
            f'<text x="{x_of(late)}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">'
            f"{late}</text>"
        )
    for row in json.loads(RECORD.read_text())["rows"]:
        lines += point(row)
    return "\n".join([*lines, "</svg>"]) + "\n"


def point(row: dict) -> list[str]:
    """Return the point of a row, its spread over seeds and its label; nothing if not shown."""
    method, stages = row["options"]["method"], row["options"]["stages"]
    if (method, stages) not in SHOWN:
        return []
    label, label_late, label_loss = SHOWN[method, stages]
    loss = row["final"]["test_loss"]
    x, y = x_of(parse_method(method).staleness(0, stages)), y_of(loss["mean"])
    label_x, label_y = x_of(label_late), y_of(label_loss)
    spread = y - y_of(loss["mean"] + loss["deviation"])
    lines = [
        f'<line x1="{x}" x2="{x}" y1="{y - spread:.1f}" y2="{y + spread:.1f}" '
        'stroke="#2b6ca3" stroke-width="3"/>',
        f'<circle cx="{x}" cy="{y}" r="5" fill="#2b6ca3"/>',
        f'<text x="{label_x}" y="{label_y + 4}">{label}: {loss["mean"]:.2f}</text>',
    ]
    if label_x > x:
        lines.append(
            f'<line x1="{x + 8}" x2="{label_x - 5}" y1="{y}" y2="{label_y}" stroke="#999"/>'
        )
    return lines


def x_of(late: float) -> float:
    """Return the position of a delay in pixels."""
    return round(LEFT + 12 + late / MOST_LATE * (WIDTH - LEFT - 36), 1)


def y_of(loss: float) -> float:
    """Return the position of a loss in pixels."""
    least, most = LOSSES
    return round(TOP + (most - loss) / (most - least) * (HEIGHT - TOP - BOTTOM), 1)


PICTURES = {"expect.svg": expect_picture}

if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(expect_picture())

"""Learning rates that begin divided by the staleness."""

from itertools import pairwise

import torch
from pictures.frame import BLUE, COLOURS, ORANGE, WIDTH, circle, line, svg, text
from pictures.programs import join

from hocket.methods import parse_method
from hocket.remedies import StageInfo, Weights

STAGES, STALE, UPDATES = 4, 2, 1200  # K, stages whose rates begin lower, updates to show
LEFT, TOP, BOTTOM, HEIGHT = 44, 58, 42, 230  # pixels


def rates_picture() -> str:
    """Return the factor on the learning rate of each stage, over the updates."""
    lines = [
        text(8, 20, f"pipedream-lr on {STAGES} stages: factor on learning rates", bold=True),
        text(WIDTH - 8, HEIGHT - 8, "updates", anchor="end"),
    ]
    # The axes.
    for factor in (0.0, 0.5, 1.0):
        lines += [
            line(LEFT, y_of(factor), WIDTH - 8, y_of(factor), "#e4e4e4"),
            text(LEFT - 8, y_of(factor) + 4, f"{factor:g}", anchor="end"),
        ]
    for update in range(0, UPDATES, 500):
        lines.append(text(x_of(update), HEIGHT - BOTTOM + 16, f"{update:,}", anchor="middle"))
    # A curve for each stage whose gradients are more than one update old, and one for the rest.
    x, rest = 8, f"stages {join(map(str, range(STALE, STAGES)))}"
    for stage, colour in enumerate((BLUE, ORANGE, COLOURS["U"])):
        name = f"stage {stage}" if stage < STALE else rest
        lines += [circle(x + 5, 37, colour), text(x + 15, 41, name)]
        x += 34 + 7 * len(name)
        points = [(x_of(u), y_of(factor_at(stage, u))) for u in range(0, UPDATES + 1, 50)]
        lines += [line(*start, *end, colour, 3) for start, end in pairwise(points)]
    return svg(HEIGHT, *lines)


def factor_at(stage: int, update: int) -> float:
    """Return the factor of the method's remedy on the learning rate of an update."""
    method = parse_method("pipedream-lr")
    (remedy,) = method.remedies
    weight = torch.nn.Parameter(torch.ones(1))
    weights = Weights([weight], torch.optim.SGD([weight]))
    info = StageInfo(index=stage, count=STAGES, staleness=method.staleness(stage, STAGES))
    return remedy.attach(info, weights).lr_factor(update)


def x_of(update: int) -> float:
    """Return the position of an update in pixels."""
    return LEFT + 8 + update / UPDATES * (WIDTH - LEFT - 24)


def y_of(factor: float) -> float:
    """Return the position of a factor in pixels."""
    return TOP + (1 - factor) * (HEIGHT - TOP - BOTTOM)


PICTURES = {"rates-pipedream-lr.svg": rates_picture}

"""A program as a picture: time runs to the right, a row for each stage.

Forwards are blue and backwards orange, with the number of their batch; compare Figure 1(b) of
FDG (arXiv 1906.09108).
"""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from hocket.errors import OptionError
from hocket.program import Tick

COLOURS = {"F": "#9ecae1", "B": "#fdae6b", "U": "#a1d99b", "T": "#bcbddc"}
NAMES = {"F": "forward", "B": "backward", "U": "update", "T": "target"}
# Widths in a tick; a backward takes about twice as long as a forward.
WIDTHS = {"F": 1.0, "B": 2.0, "U": 0.4, "T": 0.6}


def draw_picture(ticks: Sequence[Tick], stages: int, title: str, file: Path) -> None:
    """Write the program as SVG, PNG or PDF, whatever the file's name ends in.

    Actions of one stage in one tick stand side by side; where edges have no delay, stages wait
    for each other and the tick is as long as the chain of their actions.

    Raises:
        OptionError: The file's ending is none of these, or it cannot be written.
    """
    if file.suffix not in (".svg", ".png", ".pdf"):
        raise OptionError(f"cannot draw to {str(file)!r}; use a name in .svg, .png or .pdf")
    spans = _spans(ticks, stages)
    end = max((stop for _, _, _, stop in spans), default=1.0)
    figure = Figure(figsize=(min(2 + 0.32 * end, 40), 1.2 + 0.5 * stages), layout="tight")
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    for kind, (stage, batch), start, stop in spans:
        box = Rectangle(
            (start, stage - 0.4), stop - start, 0.8, facecolor=COLOURS[kind], edgecolor="white"
        )
        axes.add_patch(box)
        if kind in "FB":
            axes.text((start + stop) / 2, stage, str(batch), ha="center", va="center", size=8)
    for border in sorted({edge for *_, edge in _borders(ticks, stages)}):
        axes.axvline(border, color="#cccccc", linewidth=0.6, zorder=0)
    axes.set(xlim=(0, end), ylim=(stages - 0.5, -0.5), title=title, xlabel="time")
    axes.set_xticks([])
    axes.set_yticks(range(stages), [f"stage {k}" for k in range(stages)])
    shown = [k for k in COLOURS if any(span[0] == k for span in spans)]
    handles = [Rectangle((0, 0), 1, 1, facecolor=COLOURS[kind]) for kind in shown]
    axes.legend(
        handles,
        [NAMES[k] for k in shown],
        loc="upper left",
        bbox_to_anchor=(1, 1),
        frameon=False,
    )
    try:
        figure.savefig(file)
    except OSError as error:
        raise OptionError(f"cannot draw to {str(file)!r}: {error.strerror}") from error


Span = tuple[str, tuple[int, int], float, float]


def _spans(ticks: Sequence[Tick], stages: int) -> list[Span]:
    """Kind, (stage, batch), start and stop of every action."""
    return [span for spans, _ in _borders(ticks, stages) for span in spans]


def _borders(ticks: Sequence[Tick], stages: int) -> list[tuple[list[Span], float]]:
    """The spans of each tick and the time at which it ends.

    An action starts when its stage is free and, if the batch was handled by the neighbour in
    this same tick, when the neighbour is done.
    """
    result = []
    start = 0.0
    for tick in ticks:
        free = [start] * stages
        done: dict[tuple[str, int, int], float] = {}
        spans: list[Span] = []
        for action in tick:
            neighbour = action.stage + (-1 if action.kind == "F" else 1)
            source = "F" if action.kind == "F" else "B"
            begin = max(free[action.stage], done.get((source, neighbour, action.batch), start))
            stop = begin + WIDTHS[action.kind]
            free[action.stage] = done[action.kind, action.stage, action.batch] = stop
            spans.append((action.kind, (action.stage, action.batch), begin, stop))
        start = max(free)
        result.append((spans, start))
    return result

"""Programs and timelines as pictures: time runs to the right, a row for each stage.

Forwards are blue and backwards orange, with the number of their batch; compare Figure 1(b) of
FDG (arXiv 1906.09108).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import EngFormatter

from hocket.errors import OptionError
from hocket.program import Tick
from hocket.timeline import Span, SpanKind, Timeline
from hocket.timeline.span import KINDS

COLOURS: Mapping[SpanKind, str] = {
    "F": "#9ecae1",
    "B": "#fdae6b",
    "U": "#a1d99b",
    "T": "#bcbddc",
    "send": "#f768a1",
    "wait": "#f4f4f4",
}
# Widths in a tick; a backward takes about twice as long as a forward.
WIDTHS = {"F": 1.0, "B": 2.0, "U": 0.4, "T": 0.6}
# Inches: of a forward, of a row, of the widest picture, of a digit.
FORWARD_IN, ROW_IN, WIDEST_IN, DIGIT_IN = 0.32, 0.5, 40.0, 0.08


@dataclass(frozen=True)
class Panel:
    """A timeline to draw.

    Args:
        title: What stands above.
        timeline: What is drawn.
        stages: The rows.
        borders_s: Where to draw a line through all stages.
        measured: Whether its seconds were measured, and are written below.
    """

    title: str
    timeline: Timeline
    stages: Sequence[int]
    borders_s: Sequence[float] = ()
    measured: bool = False


def draw_picture(ticks: Sequence[Tick], stages: int, title: str, file: Path) -> None:
    """Write the program as SVG, PNG or PDF, whatever the file's name ends in.

    Actions of one stage in one tick stand side by side; where edges have no delay, stages wait
    for each other and the tick is as long as the chain of their actions.

    Raises:
        OptionError: The file's ending is none of these, or it cannot be written.
    """
    draw_panels([program_panel(ticks, stages, title)], file)


def program_panel(
    ticks: Sequence[Tick],
    stages: int,
    title: str,
    first: int | None = None,
    batches: int | None = None,
) -> Panel:
    """The program as if each kind of action always took the same time.

    Args:
        ticks: The program.
        stages: K.
        title: What stands above.
        first: The first batch to show, as in :meth:`Timeline.window`; None for everything.
        batches: How many to show from there.

    Raises:
        OptionError: The program does not have the first batch.
    """
    timeline = lay_out(ticks, stages)
    ends_s: dict[int, float] = {}
    for span in timeline.spans:
        ends_s[span.tick] = max(span.end_s, ends_s.get(span.tick, 0.0))
    if first is not None:
        timeline = timeline.window(first, batches)
    return Panel(title, timeline, range(stages), tuple(ends_s.values()))


def timeline_panel(timeline: Timeline, title: str) -> Panel:
    """What was measured, with its seconds."""
    return Panel(title, timeline, timeline.stages, measured=True)


def draw_panels(panels: Sequence[Panel], file: Path) -> None:
    """Write panels below each other as SVG, PNG or PDF, whatever the file's name ends in.

    Raises:
        OptionError: The file's ending is none of these, or it cannot be written.
    """
    if file.suffix not in (".svg", ".png", ".pdf"):
        raise OptionError(f"cannot draw to {str(file)!r}; use a name in .svg, .png or .pdf")
    rows = [len(panel.stages) for panel in panels]
    inches = min(max(map(_inches, panels)), WIDEST_IN - 2)
    height = sum(1.2 + ROW_IN * count for count in rows)
    figure = Figure(figsize=(2 + inches, height), layout="tight")
    FigureCanvasSVG(figure)
    every = figure.subplots(len(panels), squeeze=False, height_ratios=rows)[:, 0]
    for axes, panel in zip(every, panels, strict=True):
        _draw(axes, panel, inches)
    drawn = {span.kind for panel in panels for span in panel.timeline.spans}
    shown = [kind for kind in COLOURS if kind in drawn]
    every[0].legend(
        [_box(kind, 0, 1, 0) for kind in shown],
        [KINDS[kind] for kind in shown],
        loc="upper left",
        bbox_to_anchor=(1, 1),
        frameon=False,
    )
    try:
        figure.savefig(file)
    except OSError as error:
        raise OptionError(f"cannot draw to {str(file)!r}: {error.strerror}") from error


def lay_out(ticks: Sequence[Tick], stages: int) -> Timeline:
    """The program as a timeline in which a forward takes one second.

    An action starts when its stage is free and, if the batch was handled by the neighbour in
    this same tick, when the neighbour is done.
    """
    spans: list[Span] = []
    start = 0.0
    for now, tick in enumerate(ticks):
        free = [start] * stages
        done: dict[tuple[str, int, int], float] = {}
        for action in tick:
            neighbour = action.stage + (-1 if action.kind == "F" else 1)
            source = "F" if action.kind == "F" else "B"
            begin = max(free[action.stage], done.get((source, neighbour, action.batch), start))
            stop = begin + WIDTHS[action.kind]
            free[action.stage] = done[action.kind, action.stage, action.batch] = stop
            spans.append(Span(action.stage, action.kind, action.batch, now, begin, stop))
        start = max(free)
    return Timeline(tuple(spans))


def _inches(panel: Panel) -> float:
    """The width at which a usual forward is as wide as in every picture."""
    forwards = [s.end_s - s.start_s for s in panel.timeline.flat().spans if s.kind == "F"]
    usual_s = median(forwards) if forwards else 1.0
    return max(FORWARD_IN * panel.timeline.length_s / usual_s, 1.0)


def _draw(axes: Axes, panel: Panel, inches: float) -> None:
    """One panel: boxes, numbers, ticks."""
    start_s = panel.timeline.spans[0].start_s if panel.timeline.spans else 0.0
    length_s = panel.timeline.length_s or 1.0
    rows = {stage: row for row, stage in enumerate(panel.stages)}
    widest: dict[tuple[SpanKind, int, int], Span] = {}
    for piece in panel.timeline.flat().spans:
        took_s = piece.end_s - piece.start_s
        axes.add_patch(_box(piece.kind, piece.start_s - start_s, took_s, rows[piece.stage]))
        key = (piece.kind, piece.stage, piece.batch)
        if key not in widest or took_s > widest[key].end_s - widest[key].start_s:
            widest[key] = piece
    for (kind, stage, batch), piece in widest.items():
        middle_s = (piece.start_s + piece.end_s) / 2 - start_s
        room_in = inches * (piece.end_s - piece.start_s) / length_s
        if kind in ("F", "B") and len(str(batch)) * DIGIT_IN <= room_in:
            axes.text(middle_s, rows[stage], str(batch), ha="center", va="center", size=8)
    for border_s in panel.borders_s:
        if start_s < border_s <= start_s + length_s:
            axes.axvline(border_s - start_s, color="#cccccc", linewidth=0.6, zorder=0)
    axes.set(xlim=(0, length_s), ylim=(len(rows) - 0.5, -0.5), title=panel.title)
    axes.set_yticks(range(len(rows)), [f"stage {stage}" for stage in panel.stages])
    if panel.measured:
        axes.xaxis.set_major_formatter(EngFormatter("s"))
    else:
        axes.set_xticks([])
        axes.set_xlabel("time")


def _box(kind: SpanKind, start: float, width: float, row: int) -> Rectangle:
    """A box in a row; what is waited is hatched."""
    hatched = kind == "wait"
    return Rectangle(
        (start, row - 0.4),
        width,
        0.8,
        facecolor=COLOURS[kind],
        edgecolor="#d0d0d0" if hatched else "white",
        linewidth=0.0 if hatched else 0.8,
        hatch="////" if hatched else None,
    )

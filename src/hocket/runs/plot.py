"""Pictures of programs and timelines: time runs to the right, with a row for each stage.

Forwards are blue and backwards orange, with the number of their batch; compare Figure 1(b) of
FDG (arXiv 1906.09108).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from hocket.errors import OptionError, import_extra
from hocket.files import replace_atomically
from hocket.program.action import Tick
from hocket.timeline import Span, SpanKind, Timeline
from hocket.timeline.recorder import KIND_NAMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import Rectangle

COLOURS: Mapping[SpanKind, str] = {
    "F": "#9ecae1",
    "B": "#fdae6b",
    "U": "#a1d99b",
    "T": "#bcbddc",
    "send": "#f768a1",
    "wait": "#f4f4f4",
}
# Widths of actions in a program; a backward takes about twice as long as a forward.
WIDTHS = {"F": 1.0, "B": 2.0, "U": 0.4, "T": 0.6}
# Points of letters: 17 pixels on a screen, 12 where a few batches are shown 400 pixels wide.
LETTERS_PT = 13
# Inches: widths of a digit and, for each digit, of a forward; height of a row; widths of the
# narrowest panel, below which the names of colours have room, and of the widest picture.
DIGIT_IN, FORWARD_IN, ROW_IN, NARROWEST_IN, WIDEST_IN = 0.1, 0.13, 0.5, 4.0, 40.0


@dataclass(frozen=True)
class Panel:
    """A timeline to draw.

    Args:
        title: Text above the panel.
        timeline: Timeline to draw.
        stages: Stages of the rows.
        tick_ends_s: Times at which to draw a line through all stages.
        measured: The times were measured; label the axis in seconds.
        labels: Text in the box of an action, by kind, stage and batch; its batch if not given.
    """

    title: str
    timeline: Timeline
    stages: Sequence[int]
    tick_ends_s: Sequence[float] = ()
    measured: bool = False
    labels: Mapping[tuple[SpanKind, int, int], str] = field(default_factory=dict)

    def label(self, span: Span) -> str:
        """Return the text in the box of an action."""
        return self.labels.get((span.kind, span.stage, span.batch), str(span.batch))


def draw_program(ticks: Sequence[Tick], stages: int, title: str, file: Path) -> None:
    """Write a picture of a program as SVG, PNG or PDF, depending on the file's extension.

    Actions of one stage in one tick are drawn side by side. Along edges without delay, stages
    wait for each other, and the tick is as long as the chain of their actions.

    Args:
        ticks: The program.
        stages: Number of stages K.
        title: Text above the picture.
        file: File to write.

    Raises:
        OptionError: The file has another extension or cannot be written, or matplotlib is not
            installed.
    """
    draw_panels([program_panel(ticks, stages, title)], file)


def program_panel(
    ticks: Sequence[Tick],
    stages: int,
    title: str,
    first: int | None = None,
    batches: int | None = None,
) -> Panel:
    """Build the panel of a program, with a fixed duration for each kind of action.

    Args:
        ticks: The program.
        stages: Number of stages K.
        title: Text above the panel.
        first: First batch to show, as in :meth:`Timeline.window`; None for everything.
        batches: Number of batches to show from there.

    Raises:
        OptionError: The program does not have the first batch.
    """
    # Lay out the program, and note where ticks end.
    timeline = layout_program(ticks, stages)
    ends_s: dict[int, float] = {}
    for span in timeline.spans:
        ends_s[span.tick] = max(span.end_s, ends_s.get(span.tick, 0.0))
    # Cut out the batches to show.
    if first is not None:
        timeline = timeline.window(first, batches)
    labels: dict[tuple[SpanKind, int, int], str] = {
        (a.kind, a.stage, a.batch): a.label for tick in ticks for a in tick
    }
    return Panel(title, timeline, range(stages), tuple(ends_s.values()), labels=labels)


def timeline_panel(timeline: Timeline, title: str) -> Panel:
    """Build the panel of a measured timeline, with an axis in seconds."""
    return Panel(title, timeline, timeline.stages, measured=True)


def draw_panels(panels: Sequence[Panel], file: Path) -> None:
    """Write panels below each other as SVG, PNG or PDF, depending on the file's extension.

    Raises:
        OptionError: The file has another extension or cannot be written, or matplotlib is not
            installed.
    """
    require_drawable(file)
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    # Size the figure after its panels.
    heights = [len(panel.stages) for panel in panels]
    width_in = min(max(map(_panel_width_in, panels)), WIDEST_IN - 1)
    height_in = 0.6 + sum(0.9 + ROW_IN * count for count in heights)
    figure = Figure(figsize=(1 + width_in, height_in), layout="constrained")
    FigureCanvasSVG(figure)
    with rc_context({"font.size": LETTERS_PT, "axes.titlesize": LETTERS_PT}):
        all_axes = figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0]
        for axes, panel in zip(all_axes, panels, strict=True):
            _draw_panel(axes, panel, width_in)
        # Explain the colours, and write the file.
        drawn = {span.kind for panel in panels for span in panel.timeline.spans}
        shown = [kind for kind in COLOURS if kind in drawn]
        figure.legend(
            [_build_box(kind, 0, 1, 0) for kind in shown],
            [KIND_NAMES[kind] for kind in shown],
            loc="outside lower left",
            ncols=3,
            frameon=False,
        )
        try:
            with replace_atomically(file) as unfinished:
                figure.savefig(unfinished, format=file.suffix[1:])
        except OSError as error:
            raise OptionError(f"cannot draw to {str(file)!r}: {error.strerror}") from error


def require_drawable(file: Path) -> None:
    """Refuse a file that no picture can be drawn to.

    Raises:
        OptionError: It has another extension, or matplotlib is not installed.
    """
    if file.suffix not in (".svg", ".png", ".pdf"):
        raise OptionError(f"cannot draw to {str(file)!r}; use a name in .svg, .png or .pdf")
    import_extra("matplotlib", "plot", "a picture")


def layout_program(ticks: Sequence[Tick], stages: int) -> Timeline:
    """Convert a program to a timeline in which a forward takes one second.

    An action starts when its stage is free and, if the neighbour handles the same batch in the
    same tick, when the neighbour has finished.
    """
    spans: list[Span] = []
    tick_start_s = 0.0
    for index, tick in enumerate(ticks):
        free_s = [tick_start_s] * stages
        ends_s: dict[tuple[str, int, int], float] = {}
        for action in tick:
            neighbour = action.stage + (-1 if action.kind == "F" else 1)
            source = "F" if action.kind == "F" else "B"
            arrival_s = ends_s.get((source, neighbour, action.batch), tick_start_s)
            start_s = max(free_s[action.stage], arrival_s)
            end_s = start_s + WIDTHS[action.kind]
            free_s[action.stage] = ends_s[action.kind, action.stage, action.batch] = end_s
            spans.append(Span(action.stage, action.kind, action.batch, index, start_s, end_s))
        tick_start_s = max(free_s)
    return Timeline(tuple(spans))


def _panel_width_in(panel: Panel) -> float:
    """Return the width in inches at which a median forward has room for each label."""
    forwards = [s for s in panel.timeline.flatten().spans if s.kind == "F"]
    median_s = median(s.end_s - s.start_s for s in forwards) if forwards else 1.0
    digits = max((len(panel.label(s)) for s in forwards), default=1)
    return max(digits * FORWARD_IN * panel.timeline.length_s / median_s, NARROWEST_IN)


def _draw_panel(axes: "Axes", panel: Panel, width_in: float) -> None:
    """Draw the boxes, numbers and ticks of one panel."""
    from matplotlib.ticker import EngFormatter

    # Draw a box for each span.
    start_s = panel.timeline.spans[0].start_s if panel.timeline.spans else 0.0
    length_s = panel.timeline.length_s or 1.0
    rows = {stage: row for row, stage in enumerate(panel.stages)}
    widest: dict[tuple[SpanKind, int, int], Span] = {}
    for piece in panel.timeline.flatten().spans:
        piece_s = piece.end_s - piece.start_s
        box = _build_box(piece.kind, piece.start_s - start_s, piece_s, rows[piece.stage])
        axes.add_patch(box)
        key = (piece.kind, piece.stage, piece.batch)
        if key not in widest or piece_s > widest[key].end_s - widest[key].start_s:
            widest[key] = piece
    # Number each action in its widest piece, if there is room.
    for piece in widest.values():
        middle_s = (piece.start_s + piece.end_s) / 2 - start_s
        piece_in = width_in * (piece.end_s - piece.start_s) / length_s
        if piece.kind in ("F", "B") and len(label := panel.label(piece)) * DIGIT_IN <= piece_in:
            axes.text(middle_s, rows[piece.stage], label, ha="center", va="center")
    # Draw ticks, rows and axis.
    for tick_end_s in panel.tick_ends_s:
        if start_s < tick_end_s <= start_s + length_s:
            axes.axvline(tick_end_s - start_s, color="#cccccc", linewidth=0.6, zorder=0)
    axes.set(xlim=(0, length_s), ylim=(len(rows) - 0.5, -0.5), title=panel.title)
    axes.set_yticks(range(len(rows)), [f"stage {stage}" for stage in panel.stages])
    if panel.measured:
        axes.xaxis.set_major_formatter(EngFormatter("s"))
    else:
        axes.set_xticks([])
        axes.set_xlabel("time")


def _build_box(kind: SpanKind, start: float, width: float, row: int) -> "Rectangle":
    """Build a box in a row; a wait is hatched."""
    from matplotlib.patches import Rectangle

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

"""Programs that the engines execute, drawn in time: a forward takes 1 unit, a backward 2."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import partial

from pictures.frame import COLOURS, WIDTH, box, svg, text

from hocket import BP, FDG, Method
from hocket.methods.method import FORWARDS_AGAIN
from hocket.methods.registry import parse_method
from hocket.timeline import Span
from hocket_lab.planner.simulate import StageTimes, simulate

# An update takes so little that it does not show, but has its place between the others.
TIMES = StageTimes(forward_s=1.0, backward_s=2.0, update_s=2.0**-10, packet_s=0.0)
STAGES, BATCHES, LENGTH = 3, 30, 20.0  # of a picture, in forwards
LEFT, HEAD, UNIT, ROW = 62, 44, 16.0, 26  # pixels
# Methods that the documents show.
SHOWN = [
    "bp", "gpipe", "1f1b", "fdg", "adl:accumulate=2", "ddg", "pipedream", "fr", "dsp",
    "petra", "pipedream-2bw:accumulate=2", "paci:accumulate=2", "dgl",
]  # fmt: skip


def compare_picture(*titled: tuple[str, Method]) -> str:
    """Return the programs of methods below each other, when all stages are busy."""
    lines, top = [], 0
    for title, method in titled:
        shown = window(in_units(method, STAGES), first=4)
        trained = {s.batch for s in shown if (s.kind, s.stage) == ("B", 0)}
        lines += panel(shown, STAGES, title, f"{len(trained)} batches trained", top)
        top += panel_height(STAGES) + 8
    return svg(top + 14, *lines, *legend(top + 4))


def stale_picture() -> str:
    """Return FDG with the way of batch 6, and the updates that make its gradient stale."""
    shown = window(in_units(FDG(), STAGES), first=4)
    # The updates of stage 0 between the forward of the batch and its backward.
    turns = [s for s in shown if s.stage == 0]
    forward, backward = [n for n, s in enumerate(turns) if s.batch == 6 and s.kind != "U"]
    missed = [s for s in turns[forward:backward] if s.kind == "U"]
    way = [s for s in shown if s.batch == 6 and s.kind != "U"]
    note = f"stage 0 updates {len(missed)} times before the gradient is back"
    height = panel_height(STAGES)
    lines = panel(shown, STAGES, "The way of batch 6 with FDG", note, 0, bold=[*missed, *way])
    return svg(height + 24, *lines, *legend(height + 14))


def method_picture(name: str, stages: int = STAGES, also: str = "") -> str:
    """Return the program of a method from its first batch on.

    Args:
        name: The method.
        stages: Number of stages K.
        also: Method with the same program, to name with it.
    """
    method, height = parse_method(name), panel_height(stages)
    title = f"{name}{also and f' and {also}'} on {stages} stages"
    shown = window(in_units(method, stages))
    lines = panel(shown, stages, title, costs(method, stages), 0)
    return svg(height + 24, *lines, *legend(height + 14))


def costs(method: Method, stages: int) -> str:
    """Return the staleness of each stage, and what each stage keeps."""
    stale = [method.staleness(stage, stages) for stage in range(stages)]
    memory = [method.memory(stage, stages) for stage in range(stages)]
    kept = "inputs" if method.linearize in FORWARDS_AGAIN else "graphs"
    told = f"staleness {join(f'{s:g}' for s in stale)}" if any(stale) else "nothing is stale"
    return f"{told}; keeps {join(str(getattr(count, kept)) for count in memory)} {kept}"


def join(numbers: Iterable[str]) -> str:
    """Return the number of each stage, with commas between them."""
    return ", ".join(numbers)


def window(spans: list[Span], first: int = 0) -> list[Span]:
    """Return the actions that fit into a picture, from the forward of a batch at stage 0 on."""
    start = min(s.start_s for s in spans if (s.kind, s.stage, s.batch) == ("F", 0, first))
    return [s for s in spans if start <= s.start_s and start < s.end_s <= start + LENGTH]


def in_units(method: Method, stages: int, batches: int = BATCHES) -> list[Span]:
    """Return the actions of a training, in their order, in whole units of time."""
    spans = simulate(method, [TIMES] * stages, batches).spans
    return [replace(s, start_s=round(s.start_s), end_s=round(s.end_s)) for s in spans]


def panel_height(stages: int) -> int:
    """Return the height of a panel in pixels."""
    return HEAD + stages * ROW


def panel(
    shown: list[Span],
    stages: int,
    title: str,
    note: str,
    top: float,
    bold: Collection[Span] | None = None,
) -> list[str]:
    """Return the rows of a program.

    Args:
        shown: Actions to draw.
        stages: Number of stages K.
        title: First line above the rows.
        note: Second line.
        top: Upper end in pixels.
        bold: Actions that stand out; the others are pale. None shows all alike.
    """
    lines = [text(8, top + 18, title, bold=True), text(8, top + 36, note)]
    # A grey row for each stage, and a box for each action.
    for stage in range(stages):
        y = top + HEAD + stage * ROW
        lines += [
            text(8, y + 16, f"stage {stage}"),
            box(LEFT, y, LENGTH * UNIT, ROW - 4, COLOURS["idle"]),
        ]
    start = min(s.start_s for s in shown)
    for s in sorted(shown, key=lambda span: span.kind == "U"):
        pale = "" if bold is None or s in bold else ' opacity="0.25"'
        x, y = LEFT + (s.start_s - start) * UNIT, top + HEAD + s.stage * ROW
        if s.kind == "U":
            lines.append(box(x - 4, y - 2, 4, ROW, COLOURS["U"], pale))
        elif s.kind in COLOURS:
            width = (s.end_s - s.start_s) * UNIT
            lines += [
                box(x, y, width - 1, ROW - 4, COLOURS[s.kind], pale),
                text(x + width / 2, y + 16, str(s.batch), anchor="middle", more=pale),
            ]
    return lines


def legend(y: float) -> list[str]:
    """Return the meaning of the colours, and the direction of time."""
    lines, x = [], 8
    for kind, name in {"F": "forward", "B": "backward", "U": "update", "idle": "idle"}.items():
        lines += [box(x, y - 10, 12, 12, COLOURS[kind]), text(x + 16, y, name)]
        x += 30 + 7 * len(name)
    return [*lines, text(WIDTH - 8, y, "time →", anchor="end")]


PICTURES = {
    "why.svg": partial(
        compare_picture,
        ("Back-propagation: each stage waits for the others", BP()),
        ("FDG: no stage waits", FDG()),
    ),
    "pipelines.svg": partial(
        compare_picture,
        ("1F1B waits at the end of each group", parse_method("1f1b:accumulate=4")),
        ("FDG: no stage waits", FDG()),
    ),
    "stale.svg": stale_picture,
    "program-two-stages.svg": partial(method_picture, "fdg", stages=2),
    "program-dni.svg": partial(method_picture, "dni", also="cdni"),
}
PICTURES |= {
    f"program-{name.partition(':')[0]}.svg": partial(method_picture, name) for name in SHOWN
}

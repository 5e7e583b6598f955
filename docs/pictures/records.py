"""What stale gradients cost and how fast stages are, drawn from records."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median

from pictures.frame import BLUE, ORANGE, WIDTH, circle, line, svg, text
from pictures.programs import LENGTH, legend, panel, panel_height

from hocket.methods import parse_method
from hocket.timeline import Span

RECORDS = Path(__file__).parents[2] / "records"
# Of a training with --record-timeline: stage, kind, batch, start and end in milliseconds.
TRACE = Path(__file__).parent / "trace.json"
# Rows of expect.svg: labels, where they begin or end, and their anchor.
STALE = {
    ("bp", 1): ("back-propagation", 0.75, 1.725, "start"),
    ("paci:accumulate=4+predict", 2): ("PACI+predict, 2 stages", 0.75, 1.775, "start"),
    ("adl:accumulate=12+predict", 4): ("ADL+predict, 4 stages", 0.75, 1.825, "start"),
    ("paci:accumulate=2+predict", 2): ("PACI, fewer batches an update", 0.75, 1.875, "start"),
    ("ddg+predict", 4): ("DDG+predict, 4 stages", 2.85, 1.99, "end"),
    ("fdg+predict", 4): ("FDG+predict, 4 stages", 4.85, 2.15, "end"),
}
LEFT, TOP, BOTTOM, HEIGHT = 44, 36, 42, 250  # pixels
MOST_STALE, LOSSES = 5.1, (1.70, 2.20)
# Rows of images.svg and remedies.svg: what is written, and the method of each series.
IMAGES = {
    "back-propagation": ("bp", "bp"),
    "fdg+predict": ("fdg+predict",) * 2,
    "ddg": ("ddg",) * 2,
    "adl:accumulate=4": ("adl:accumulate=4",) * 2,
    "fr": ("fr",) * 2,
    "fdg": ("fdg",) * 2,
    "dgl": ("dgl",) * 2,
}
REMEDIED = {
    name: (name, f"{name}+predict")
    for name in ("paci:accumulate=4", "adl:accumulate=4", "ddg", "fdg")
}
# Rows of reach.svg: the method without delay, with the delays of fdg and with one tick more.
EXACT = "forward_delay=0,backward_delay=0"
REACHED = {
    "own loss alone": ("dgl",) * 3,
    **{
        f"and the next {reach}": (f"dgl:reach={reach},{EXACT}", *(f"dgl:reach={reach}",) * 2)
        for reach in (1, 2, 3)
    },
    "last loss alone": ("bp", "fdg", "fdg"),
}
DELAYS = (("no delay", BLUE), ("delays of fdg", ORANGE), ("one tick more", "#c0392b"))
# Rows of speed.svg.
FAST = {
    "two trainings": "independent",
    "DDP": "ddp",
    "dgl": "dgl",
    "fdg": "fdg",
    "bp, both cores": "bp-all",
    "1F1B of PyTorch": "1f1b microbatches=8",
}
# Rows of links.svg, and its links.
LINKED = {
    "bp, both cores": "bp-all",
    "ADL, M=8, int8": "adl accumulate=8 order=forward-first codec=int8+predict",
    "Local SGD": "local-sgd every=16",
    "ADL, M=4": "adl accumulate=4+predict",
    "GPipe of Hocket": "hocket-gpipe accumulate=8",
    "1F1B of PyTorch": "1f1b microbatches=4",
    "DDP": "ddp",
}
LINKS = {"none": ("no limit", BLUE), "100Mbit,20ms": ("100 Mbit/s, 20 ms", ORANGE)}
NAMES, ROW = 130, 26  # pixels


def expect_picture() -> str:
    """Return the final test loss of a GPT over the staleness of its gradients."""
    lines = [
        text(8, 20, "Test loss of a GPT after 2,000 updates", bold=True),
        text(WIDTH - 8, HEIGHT - 8, "mean staleness of the first stage", anchor="end"),
    ]
    for loss in (1.8, 1.9, 2.0, 2.1):
        lines += [
            line(LEFT, y_of(loss), WIDTH - 8, y_of(loss), "#e4e4e4"),
            text(LEFT - 8, y_of(loss) + 4, str(loss), anchor="end"),
        ]
    lines += [
        text(x_of(stale), HEIGHT - BOTTOM + 16, str(stale), anchor="middle")
        for stale in range(6)
    ]
    for row in read("gpt-characters-2000"):
        lines += stale_point(row)
    return svg(HEIGHT, *lines)


def stale_point(row: dict) -> list[str]:
    """Return the point of a row, its spread over seeds and its label; nothing if not shown."""
    method, stages = row["options"]["method"], row["options"]["stages"]
    if (method, stages) not in STALE:
        return []
    label, label_stale, label_loss, anchor = STALE[method, stages]
    loss = row["final"]["test_loss"]
    x, y = x_of(parse_method(method).staleness(0, stages)), y_of(loss["mean"])
    label_x, label_y = x_of(label_stale), y_of(label_loss)
    spread = y - y_of(loss["mean"] + loss["deviation"])
    lines = [
        line(x, y - spread, x, y + spread, BLUE, 3),
        circle(x, y, BLUE),
        text(label_x, label_y + 4, f"{label}: {loss['mean']:.2f}", anchor=anchor),
    ]
    if anchor == "start":
        lines.append(line(x + 6, y, label_x - 4, label_y, "#999"))
    return lines


def dots_picture(
    title: str,
    series: Sequence[tuple[str, str]],
    rows: dict[str, Sequence[float]],
    ends: tuple[float, float],
    form: Callable[[float], str],
    room: int = 80,
) -> str:
    """Return a row of dots for each method, one dot of each series.

    Args:
        title: Text above the rows.
        series: Name and colour of each series.
        rows: Values of each method, one for each series.
        ends: Values at the left and the right end.
        form: Function that writes a value.
        room: Pixels for the written values.
    """
    lines = [text(8, 20, title, bold=True)]
    x = 8
    for name, colour in series:
        lines += [circle(x + 5, 37, colour), text(x + 15, 41, name)]
        x += 34 + 7 * len(name)
    # A line from end to end for each method; the larger value is written at the right.
    for place, (name, values) in enumerate(rows.items()):
        y = 66 + place * ROW
        lines += [text(8, y + 4, name), line(NAMES, y, WIDTH - room, y, "#e4e4e4")]
        for value, (_, colour) in zip(values, series, strict=True):
            share = (value - ends[0]) / (ends[1] - ends[0])
            lines.append(circle(NAMES + 6 + share * (WIDTH - NAMES - room - 12), y, colour))
        written = dict.fromkeys(map(form, values))
        lines.append(text(WIDTH - 8, y + 4, ", ".join(written), anchor="end"))
    return svg(60 + len(rows) * ROW, *lines)


def images_picture() -> str:
    """Return the test error of ResNet-8 on two and four stages."""
    held = [*read("resnet8-cifar10-held-out"), *read("resnet8-cifar10-held-out-others")]
    found = finals(held, "test_error")
    rows = {
        name: [
            100 * found[method, 1 if method == "bp" else stages]
            for method, stages in zip(pair, (2, 4), strict=True)
        ]
        for name, pair in IMAGES.items()
    }
    series = (("2 stages", BLUE), ("4 stages", ORANGE))
    title = "Test error of ResNet-8 after 8 epochs, %"
    return dots_picture(title, series, rows, (18.5, 25.0), "{:.1f}".format)


def remedies_picture() -> str:
    """Return the test loss of a GPT without and with predicted weights."""
    found = finals(read("gpt-characters-500"), "test_loss")
    rows = {name: [found[method, 4] for method in pair] for name, pair in REMEDIED.items()}
    series = (("without a remedy", ORANGE), ("with predict", BLUE))
    title = "Test loss of a GPT after 500 updates, 4 stages"
    return dots_picture(title, series, rows, (2.30, 2.54), "{:.2f}".format)


def reach_picture() -> str:
    """Return the test loss of a GPT over the number of losses that a stage learns from."""
    title = "Test loss of a GPT after 500 updates, 4 stages"
    rows = _reached("gpt-characters-reach", "test_loss", ("0", "0", "1"))
    return dots_picture(title, DELAYS, rows, (2.2, 2.95), "{:.2f}".format, room=120)


def image_reach_picture() -> str:
    """Return the test error of ResNet-8 over the number of losses that a stage learns from."""
    title = "Test error of ResNet-8 after 2 epochs, 4 stages, %"
    rows = _reached("resnet8-cifar10-reach", "test_error", ("0", "0"), factor=100)
    return dots_picture(title, DELAYS[:2], rows, (28.0, 40.0), "{:.1f}".format, room=120)


def _reached(
    record: str, what: str, delays: Sequence[str], factor: float = 1
) -> dict[str, list[float]]:
    """Return means over seeds by row, for each extra delay.

    Args:
        record: Name of the record.
        what: Name of the result.
        delays: Extra delays; the first one of methods without delay.
        factor: Factor on the results.
    """
    found = {
        (row["options"]["method"], str(row["options"].get("extra_delay", "0"))): row["final"]
        for row in read(record)
    }
    return {
        name: [
            factor * found[method, "0" if method == "dgl" else delay][what]["mean"]
            for method, delay in zip(methods, delays, strict=False)
        ]
        for name, methods in REACHED.items()
    }


def speed_picture() -> str:
    """Return samples per second of two processes, compared with one."""
    machines = ("speed", "speed-amd-epyc")
    ratios = [{row["row"]: row["ratio"] for row in read(name)} for name in machines]
    rows = {name: [found[row] for found in ratios] for name, row in FAST.items()}
    series = (("Intel Xeon", BLUE), ("AMD EPYC", ORANGE))
    title = "ResNet-20 on two cores: times as fast as one core"
    return dots_picture(title, series, rows, (1.0, 2.0), "{:.2f}".format)


def links_picture() -> str:
    """Return the seconds to a loss on two machines, compared with one core of one."""
    timed = [row for row in read("target") if "forecast" not in row]

    def of_row(name: str, link: str) -> float:
        """Return the seconds of a row; one machine has the median over all links."""
        turns = [row for row in timed if row["row"] == name]
        over = [row for row in turns if link == row["link"] or row["machines"] == 1]
        return median(row["seconds"] for row in over)

    rows = {
        name: [of_row(row, link) / of_row("bp", link) for link in LINKS]
        for name, row in LINKED.items()
    }
    title = "Seconds of two machines to a loss, one core = 1"
    return dots_picture(title, [*LINKS.values()], rows, (0.5, 2.5), "{:.2f}".format)


def trace_picture() -> str:
    """Return the measured actions of two stages."""
    actions = json.loads(TRACE.read_text())
    length = max(end for *_, end in actions)
    unit = length / LENGTH
    spans = [Span(*action, 0, start / unit, end / unit) for *action, start, end in actions]
    title, note = "ResNet-20 on two stages with FDG", f"measured, {length} ms: stage 0 waits"
    height = panel_height(2)
    lines = panel(spans, 2, title, note, 0)
    return svg(height + 24, *lines, *legend(height + 14))


def read(name: str) -> list[dict]:
    """Return the rows of a record."""
    return json.loads((RECORDS / name / "record.json").read_text())["rows"]


def finals(rows: Iterable[dict], metric: str) -> dict[tuple[str, int], float]:
    """Return the final mean of each method and number of stages; the first of equal ones."""
    found: dict[tuple[str, int], float] = {}
    for row in rows:
        key = row["options"]["method"], row["options"]["stages"]
        found.setdefault(key, row["final"][metric]["mean"])
    return found


def x_of(stale: float) -> float:
    """Return the position of a staleness in pixels."""
    return LEFT + 8 + stale / MOST_STALE * (WIDTH - LEFT - 24)


def y_of(loss: float) -> float:
    """Return the position of a loss in pixels."""
    least, most = LOSSES
    return TOP + (most - loss) / (most - least) * (HEIGHT - TOP - BOTTOM)


PICTURES = {
    "expect.svg": expect_picture,
    "images.svg": images_picture,
    "links.svg": links_picture,
    "reach.svg": reach_picture,
    "reach-resnet8.svg": image_reach_picture,
    "remedies.svg": remedies_picture,
    "speed.svg": speed_picture,
    "trace.svg": trace_picture,
}

"""What examples print, drawn."""

from functools import partial
from pathlib import Path

from pictures.frame import BLUE, COLOURS, ORANGE
from pictures.programs import compare_picture
from pictures.records import dots_picture

from hocket import BP, DDG, FDG

EXAMPLES = Path(__file__).parents[2] / "examples"


def kept_picture() -> str:
    """Return the staleness of the first stage under each method, and the graphs it keeps."""
    rows = {
        name: (float(staleness), float(graphs))
        for name, _, staleness, graphs, *_ in printed("03_compare_methods")
    }
    series = (("staleness", BLUE), ("graphs that it keeps", ORANGE))
    return dots_picture("Stage 0 of three", series, rows, (0.0, 4.0), "{:g}".format)


def shrink_picture() -> str:
    """Return the cosines of stale and exact gradients at each stage, by the shrink factor."""
    rows: dict[str, list[float]] = {}
    for shrink, _, cosine, _ in printed("04_gradient_error"):
        rows.setdefault(f"shrink {shrink}", []).append(float(cosine))
    colours = (BLUE, ORANGE, COLOURS["U"])
    series = [(f"stage {stage}", colour) for stage, colour in enumerate(colours)]
    title = "Cosine of stale and exact gradients"
    return dots_picture(title, series, rows, (0.94, 1.0), "{:.3f}".format, room=150)


def printed(example: str) -> list[list[str]]:
    """Return the words of each line that an example prints, without the heads of columns."""
    text = (EXAMPLES / f"{example}.py").read_text().partition("\n# It prints:\n#\n")[2]
    return [line.strip("# ").split() for line in text.splitlines()[1:]]


# A picture for each example that compares methods, and its text.
PICTURES = {
    "03_compare_methods": (
        kept_picture,
        "Staleness and kept graphs of eight methods at stage 0",
    ),
    "04_gradient_error": (
        shrink_picture,
        "The smaller the shrink factor, the nearer stale gradients are to exact ones",
    ),
    "05_draw_program": (
        partial(compare_picture, ("bp", BP()), ("ddg", DDG()), ("fdg", FDG())),
        "bp trains one batch at a time; ddg and fdg train several at the same time",
    ),
}

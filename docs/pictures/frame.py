"""The frame that all drawn pictures share; they are legible on a screen of 400 pixels."""

WIDTH, LETTERS = 390, 13  # pixels
COLOURS = {"F": "#7fb2dd", "B": "#f4a259", "U": "#3f8f3f", "idle": "#f1f1f1"}
BLUE, ORANGE = "#2b6ca3", "#c8641b"


def svg(height: float, *lines: str) -> str:
    """Return a picture of these elements on a white ground."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:g}" '
        f'viewBox="0 0 {WIDTH} {height:g}" font-family="system-ui, sans-serif" '
        f'font-size="{LETTERS}" fill="#222">'
    )
    background = '<rect width="100%" height="100%" rx="6" fill="#fff"/>'
    return "\n".join([head, background, *lines, "</svg>"]) + "\n"


def text(
    x: float, y: float, words: str, *, anchor: str = "start", bold: bool = False, more: str = ""
) -> str:
    """Return words that begin, are centred or end at a point, by their anchor."""
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{weight}{more}>{words}</text>'


def box(x: float, y: float, width: float, height: float, colour: str, more: str = "") -> str:
    """Return a filled rectangle."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
        f'fill="{colour}"{more}/>'
    )


def circle(x: float, y: float, colour: str) -> str:
    """Return a dot."""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1) -> str:
    """Return a straight line."""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke="{colour}" stroke-width="{width:g}"/>'
    )

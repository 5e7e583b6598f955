"""Programs as text: as a table for people, and read from lines of actions."""

from collections.abc import Iterable

from hocket.program.action import Action, Tick


def parse_program(text: str) -> list[Tick]:
    r"""Return the ticks of a program written one per line, actions separated by spaces.

    Raises:
        ProgramError: A word is not an action.

    >>> parse_program("F0.0\nF0.1 F1.0 B1.0")[1][2].kind
    'B'
    """
    return [tuple(Action.parse(word) for word in line.split()) for line in text.splitlines()]


def format_program(ticks: Iterable[Tick], stages: int) -> str:
    """Return a program as a table for people: one line per tick, one column per stage.

    >>> from hocket.methods import FDG
    >>> from hocket.program import unroll
    >>> print(format_program(unroll(FDG(), 2, 2), 2))
    tick | stage 0     | stage 1
       0 | F0          |
       1 | F1          | F0 B0 U0
       2 | B0 U0       | F1 B1 U1
       3 | B1 U1       |
    """
    rows = [
        [" ".join(f"{a.kind}{a.label}" for a in tick if a.stage == k) for k in range(stages)]
        for tick in ticks
    ]
    width = max([len(cell) for row in rows for cell in row] + [11])
    lines = ["tick | " + " | ".join(f"stage {k}".ljust(width) for k in range(stages))]
    lines += [
        f"{t:4d} | " + " | ".join(cell.ljust(width) for cell in row)
        for t, row in enumerate(rows)
    ]
    return "\n".join(line.rstrip() for line in lines)

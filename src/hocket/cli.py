"""The command line: parse, call, print."""

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import cyclopts
from cyclopts import App, Parameter
from rich.console import Console

from hocket.bench.accuracy import accuracy as measure_accuracy
from hocket.bench.overhead import overhead as measure_overhead
from hocket.bench.speed import speed as measure_speed
from hocket.bench.tables import render
from hocket.errors import HocketError, OptionError
from hocket.parts import method_of
from hocket.picture import draw_picture
from hocket.program import draw as draw_text
from hocket.program import unroll
from hocket.recipes import recipe
from hocket.report import method_markdown, method_table, option_table, summary_tables
from hocket.run import Run, run_of, values_in
from hocket.train import train as train_run

app = App(
    name="hocket",
    help="Trains a network cut into stages that all work at the same time.",
    version_flags=["--version"],
    result_action="return_value",
)
DEFAULTS = Run()
console = Console()
messages = Console(stderr=True)


@app.command
def train(
    run: Annotated[Run, Parameter(name="*")] = DEFAULTS,
    *,
    base: Annotated[Path | None, Parameter(name="--run")] = None,
    from_recipe: Annotated[str | None, Parameter(name="--recipe")] = None,
) -> int:
    """Train a network; everything it leaves is in a new run folder.

    Parameters
    ----------
    base
        A run file to begin from, such as run.json of a run folder; options given here win.
    from_recipe
        A published setting to begin from: fdg-cifar, fdg-cifar-warmup, dgl-cifar, ddg-cifar.
    """
    summary = train_run(run)
    for table in summary_tables(summary):
        console.print(table)
    if summary.state == "interrupted":
        messages.print(f"interrupted: {summary.message}; what was reached is saved")
        return 130
    return 0


@app.command(name="methods")
def list_methods(*, stages: int = 4, markdown: bool = False) -> int:
    """List the methods: delays, staleness, memory, locks and paper, and their options.

    Parameters
    ----------
    stages
        For how many stages to count; numbers stand for stages 0, 1, ...
    markdown
        Print the table of methods as Markdown instead.
    """
    if markdown:
        console.print(method_markdown(stages), highlight=False, soft_wrap=True, markup=False)
        return 0
    wide = Console(width=max(console.width, 150)) if not console.is_terminal else console
    wide.print(method_table(stages))
    wide.print(option_table())
    return 0


@app.command
def draw(
    *, method: str = "fdg", stages: int = 3, batches: int = 6, out: Path | None = None
) -> int:
    """Print the program of a method tick by tick, or draw it as a picture.

    Parameters
    ----------
    method
        For example ddg, or adl:accumulate=2.
    stages
        How many stages.
    batches
        How many batches to train on.
    out
        A picture to write: .svg, .png or .pdf.
    """
    chosen = method_of(method)
    if batches < 1:
        raise OptionError(f"batches is {batches}; use at least 1")
    ticks = list(unroll(chosen, stages, batches))
    if out is not None:
        draw_picture(ticks, stages, f"{method} on {stages} stages", out)
        messages.print(f"drawn to {out}", soft_wrap=True)
    console.print(draw_text(ticks, stages), highlight=False, soft_wrap=True, markup=False)
    return 0


bench = App(name="bench", help="Measure, and render what was measured.")
bench.command(measure_accuracy, name="accuracy")
bench.command(measure_overhead, name="overhead")
bench.command(measure_speed, name="speed")
bench.command(render)
app.command(bench)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; 0 if it went well, 2 for an error, 130 for Ctrl-C."""
    words = list(sys.argv[1:] if words is None else words)
    try:
        app.config = (_base(words),)
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return int(app(words, exit_on_error=False, print_error=False) or 0)
    except cyclopts.CycloptsError as error:
        return _refuse(str(error))
    except HocketError as error:
        return _refuse("\n".join([str(error), *getattr(error, "__notes__", [])]))
    except KeyboardInterrupt:
        messages.print("interrupted")
        return 130
    finally:
        app.config = ()


def _refuse(message: str) -> int:
    messages.print(
        f"error: {message}", style="red", markup=False, highlight=False, soft_wrap=True
    )
    return 2


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    messages.print(
        f"warning: {message}", style="yellow", markup=False, highlight=False, soft_wrap=True
    )


def _base(words: Sequence[str]) -> cyclopts.config.Dict:
    """The values that --recipe and --run set, for options that are not given."""
    values: dict[str, Any] = {}
    if (name := _value_of("--recipe", words)) is not None:
        values |= recipe(name)
    if (file := _value_of("--run", words)) is not None:
        own = values_in(Path(file))
        run_of(own, str(file))
        values |= {key: value for key, value in own.items() if key != "out"}
    given = {k.replace("_", "-"): v for k, v in values.items() if v is not None}
    return cyclopts.config.Dict({"train": given} if given else {}, source="the run file")


def _value_of(flag: str, words: Sequence[str]) -> str | None:
    for place, word in enumerate(words):
        if word == flag and place + 1 < len(words):
            return words[place + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None

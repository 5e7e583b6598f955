"""The command line: parse, call, print."""

import dataclasses
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import cyclopts
from cyclopts import App, Parameter
from rich.console import Console

from hocket.cli.plan import plan_command as make_plan
from hocket.distributed import identity, world
from hocket.distributed.launch import launch, run_script
from hocket.distributed.restart import (
    Restarts,
    restart_count,
    restarts_allowed,
    retry_after_loss,
)
from hocket.errors import CheckpointError, HocketError, OptionError, PeerFailedError
from hocket.program import format_program as draw_text
from hocket.program import unroll
from hocket.runs.build import parse_method
from hocket.runs.config import RunConfig, check_same_run, parse_config, read_values
from hocket.runs.plot import draw_panels, draw_picture, program_panel, timeline_panel
from hocket.runs.recipes import recipe
from hocket.runs.skipped_batches import retry_skipping
from hocket.runs.tables import (
    method_markdown,
    method_table,
    option_table,
    summary_tables,
    timeline_table,
)
from hocket.runs.train import has_checkpoints, new_run_dir
from hocket.runs.train import train as train_run
from hocket.timeline import Timeline

app = App(
    name="hocket",
    help="Trains a network cut into stages that all work at the same time.",
    version_flags=["--version"],
    result_action="return_value",
)
DEFAULTS = RunConfig()
GRACE_S = 30.0
SHOWN = 6  # batches in a picture or program, if nothing is said
console = Console()
messages = Console(stderr=True)


@app.command
def train_command(
    run: Annotated[RunConfig, Parameter(name="*")] = DEFAULTS,
    *,
    base: Annotated[Path | None, Parameter(name="--config")] = None,
    from_recipe: Annotated[str | None, Parameter(name="--recipe")] = None,
    resume: Path | None = None,
    processes: int = 1,
    max_restarts: int = 0,
) -> int:
    """Train a network; everything it leaves is in a new run folder.

    Parameters
    ----------
    base
        A run file to begin from, such as run.json of a run folder; options given here win.
    from_recipe
        A published setting to begin from: fdg-cifar, fdg-cifar-warmup, dgl-cifar, ddg-cifar,
        dgl-async-slowdown.
    resume
        The folder of a run to go on with, from its last checkpoint; options given here win.
    processes
        Processes of this machine to train in, one for each stage (times replicas).
    max_restarts
        How often to start again from the last checkpoint after a process was killed, hung, or
        got a packet that was damaged: all of them, or the one that was killed alone where all
        stages run freely just then.
    """
    if max_restarts < 0 or (max_restarts and (processes == 1 or not run.checkpoint_every)):
        raise OptionError(
            f"max_restarts is {max_restarts}; give a number from 0 on, and with one above 0 "
            "--processes and --checkpoint-every"
        )
    if resume is not None:
        given = (("--config", base), ("--recipe", from_recipe), ("--run-dir", run.run_dir))
        if others := [name for name, value in given if value is not None]:
            raise OptionError(
                f"a resumed run has its own folder and choices; drop {', '.join(others)}"
            )
        if not has_checkpoints(resume, run.stages):
            raise CheckpointError(
                f"cannot go on with {str(resume)!r}: it has no checkpoints that all stages can "
                "go on from; a run leaves some with --checkpoint-every"
            )
        check_same_run(run, RunConfig.read(resume / "run.json"))
        run = dataclasses.replace(run, run_dir=resume)
    resumed = resume is not None
    if (max_restarts or run.on_nan == "restore") and run.run_dir is None:
        run = dataclasses.replace(run, run_dir=new_run_dir(run))  # the same one each time
    if processes == 1:
        again = resumed or _started_again(run)
        if "RANK" in os.environ:  # whoever started the processes starts all of them again
            return _train_and_end(run, again)
        return retry_skipping(lambda back: _train_and_end(run, again or back))
    wanted = run.stages * run.replicas
    if processes != wanted:
        raise OptionError(
            f"processes is {processes}, but {run.stages} stages x {run.replicas} replicas want "
            f"{wanted}; give --processes {wanted}, or change --stages"
        )

    free = parse_method(run.method).replay is not None
    restarts = Restarts(max_restarts)

    def start(resumed: bool) -> int:
        return launch(
            _train_and_end,
            run,
            resumed,
            processes=processes,
            threads=run.threads,
            # Time for a last checkpoint.
            grace_s=GRACE_S if run.checkpoint_every else 5.0,
            alone=restarts if free else None,
        )

    return retry_after_loss(
        lambda again: retry_skipping(lambda back: start(resumed or again or back)), restarts
    )


def _started_again(run: RunConfig) -> bool:
    """Whether torchrun has started this process again, so that the run is to go on."""
    if restarts_allowed() and (run.run_dir is None or not run.checkpoint_every):
        raise OptionError(
            f"torchrun may start this training again (--max-restarts {restarts_allowed()}), which must "
            "find where it was; give --run-dir and --checkpoint-every, or --max-restarts 0"
        )
    return restart_count() > 0


def _train_and_end(run: RunConfig, resumed: bool) -> int:
    """Train; an error is printed, and gives an exit code."""
    try:
        return _train_here(run, resumed or identity.has_rejoined())
    except HocketError as error:
        return _end(error)


def _train_here(run: RunConfig, resumed: bool) -> int:
    summary = train_run(run, resume=resumed)
    for table in summary_tables(summary) if world.is_main() else ():
        console.print(table)
    if summary.state == "interrupted":
        if world.is_main():
            messages.print(f"interrupted: {summary.message}; what was reached is saved")
            if run.checkpoint_every:
                messages.print(f"go on with: hocket train --resume {summary.folder}")
        return 128 + summary.signal
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
def draw_command(
    *,
    method: str | None = None,
    stages: int | None = None,
    batches: int | None = None,
    first: int | None = None,
    trace: Path | None = None,
    out: Path | None = None,
) -> int:
    """Print the program of a method tick by tick, or draw it; or a trace that was measured.

    Parameters
    ----------
    method
        For example ddg, or adl:accumulate=2; fdg if no trace is given. With a trace its program
        is drawn above what was measured.
    stages
        How many stages: 3, or those of the trace.
    batches
        How many batches to train on, 6 if nothing is said; of a trace, how many to show.
    first
        The first batch of a trace to show.
    trace
        A timeline to draw; without --out its busy, sending and waiting times are printed.
    out
        A picture to write: .svg, .png or .pdf.
    """
    if batches is not None and batches < 1:
        raise OptionError(f"batches is {batches}; use at least 1")
    if trace is not None:
        return _draw_trace(trace, method, stages, batches, first, out)
    if first is not None:
        raise OptionError(
            f"first is {first}, but there is no trace; add --trace or drop --first"
        )
    method, stages = method or "fdg", 3 if stages is None else stages
    ticks = list(unroll(parse_method(method), stages, batches or SHOWN))
    if out is not None:
        draw_picture(ticks, stages, f"{method} on {stages} stages", out)
        messages.print(f"drawn to {out}", soft_wrap=True)
    console.print(draw_text(ticks, stages), highlight=False, soft_wrap=True, markup=False)
    return 0


def _draw_trace(
    trace: Path,
    method: str | None,
    stages: int | None,
    batches: int | None,
    first: int | None,
    out: Path | None,
) -> int:
    """Print or draw what was measured; if there is a method, below its program."""
    timeline = Timeline.read(trace)
    count = len(timeline.stages)
    if stages not in (None, count):
        raise OptionError(f"stages is {stages}, but {str(trace)!r} has {count}; drop --stages")
    if out is None:
        if method is not None:
            raise OptionError(
                f"method is {method!r}, but a program stands beside a trace only in a picture; "
                f"add --out or drop --method"
            )
        chosen = (first, batches) != (None, None)
        console.print(timeline_table(timeline.window(first, batches) if chosen else timeline))
        return 0
    shown = batches or SHOWN
    panels = [timeline_panel(timeline.window(first, shown), f"measured: {trace.name}")]
    if method is not None:
        plan = parse_method(method)
        first = timeline.batches[0] if first is None else first
        # As many as enter before the last one shown has left.
        enter = min(timeline.batches[-1] + 1, first + shown + plan.delay(0, count))
        ticks = list(unroll(plan, count, enter))
        title = f"{method} on {count} stages"
        panels.insert(0, program_panel(ticks, count, title, first, shown))
    draw_panels(panels, out)
    messages.print(f"drawn to {out}", soft_wrap=True)
    return 0


@app.command(name="launch")
def run_in_processes(script: Path, /, *words: str, processes: int, threads: int = 0) -> int:
    """Run a Python script in several processes of this machine that can talk to each other.

    Parameters
    ----------
    script
        The script; options of Hocket's come before it.
    words
        What follows it, options too, is for the script.
    processes
        How many processes.
    threads
        Of PyTorch in each process; 0 shares the cores out.
    """
    if not script.is_file():
        raise OptionError(f"there is no script {str(script)!r}; name a Python file")
    return launch(run_script, str(script), words, processes=processes, threads=threads)


app.command(make_plan, name="plan")


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; give 0 for success, 130 for Ctrl-C, 2 or its own for an error."""
    words = _mark_script(list(sys.argv[1:] if words is None else words))
    try:
        app.config = (_base(words),) if words[:1] == ["train"] else ()
    except HocketError as error:
        return _end(error)
    try:
        return run_app(app, words)
    finally:
        app.config = ()


def run_app(app: App, words: Sequence[str]) -> int:
    """Run a command of an app; errors and warnings are printed, and give exit codes."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return int(app(words, exit_on_error=False, print_error=False) or 0)
    except cyclopts.CycloptsError as error:
        return _refuse(error)
    except HocketError as error:
        return _end(error)
    except KeyboardInterrupt:
        messages.print("interrupted")
        return 130


def _end(error: HocketError) -> int:
    """What becomes of an error, which one of several processes tells for all."""
    code = _refuse(error) if world.report_failure(error) else PeerFailedError.exit_code
    world.exit_process(code)
    return code


def _refuse(error: Exception) -> int:
    message = "\n".join([str(error), *getattr(error, "__notes__", [])])
    messages.print(
        f"error: {message}", style="red", markup=False, highlight=False, soft_wrap=True
    )
    return int(getattr(type(error), "exit_code", 2))


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    messages.print(
        f"warning: {message}", style="yellow", markup=False, highlight=False, soft_wrap=True
    )


def _mark_script(words: list[str]) -> list[str]:
    """Put ``--`` behind the script of ``hocket launch``, so that its own options stay its own."""
    if words[:1] != ["launch"]:
        return words
    place = 1
    while place < len(words) and words[place].startswith("-") and words[place] != "--":
        alone = "=" in words[place] or words[place] in app.help_flags
        place += 1 if alone else 2
    if place < len(words) and words[place] != "--":
        words.insert(place + 1, "--")
    return words


def _base(words: Sequence[str]) -> cyclopts.config.Dict:
    """The values that --recipe, --config and --resume set, for options that are not given."""
    values: dict[str, Any] = {}
    if (name := _value_of("--recipe", words)) is not None:
        values |= recipe(name)
    file = _value_of("--config", words)
    if (folder := _value_of("--resume", words)) is not None:
        file = str(Path(folder) / "run.json")
    if file is not None:
        own = read_values(Path(file))
        parse_config(own, str(file))
        values |= {key: value for key, value in own.items() if key != "run_dir"}
    given = {k.replace("_", "-"): v for k, v in values.items() if v is not None}
    return cyclopts.config.Dict({"train": given} if given else {}, source="the run file")


def _value_of(flag: str, words: Sequence[str]) -> str | None:
    for place, word in enumerate(words):
        if word == flag and place + 1 < len(words):
            return words[place + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None

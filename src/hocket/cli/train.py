"""``hocket train``: one training from its options."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from hocket.cli.output import end_with_error, print_note, print_tables
from hocket.errors import HocketError, OptionError
from hocket.runs.config import RunConfig

if TYPE_CHECKING:
    from hocket.runs.summary import Summary

DEFAULTS = RunConfig()


def train_command(
    *,
    from_recipe: Annotated[str | None, Parameter(name="--recipe")] = None,
    resume: Path | None = None,
    base: Annotated[Path | None, Parameter(name="--config")] = None,
    processes: int = 1,
    max_restarts: int = 0,
    config: Annotated[RunConfig, Parameter(name="*")] = DEFAULTS,
) -> int:
    """Train a network. All output goes to a new folder under runs/.

    Args:
        from_recipe: A published setting to start from: fdg-cifar, fdg-cifar-warmup, dgl-cifar,
            ddg-cifar, dgl-async-slowdown, gpt-characters.
        resume: Folder of a run to resume from its last checkpoint; options given here win.
        base: A run file to start from, such as run.json of a run folder; options given here
            win.
        processes: Processes of this machine to train in, one for each stage (times replicas).
        max_restarts: Number of restarts from the last checkpoint after a process was killed,
            hung, or received a damaged packet. All processes are restarted; with asynchronous
            stages (dgl-async) only the one that was killed.
        config: Options of the training.

    Raises:
        OptionError: A resumed run is given another folder or other choices to start from.
    """
    # A resumed run starts from its own choices.
    if resume is not None:
        given = (("--config", base), ("--recipe", from_recipe), ("--run-dir", config.run_dir))
        if conflicts := [name for name, value in given if value is not None]:
            raise OptionError(
                f"a resumed run has its own folder and choices; drop {', '.join(conflicts)}"
            )
    from hocket.distributed.folder.restart import environment_number
    from hocket.distributed.launching.deferred_compiler import defer_compiler
    from hocket.runs.build import note_on_plan
    from hocket.runs.start import start_training

    # Tell what the plan recommends, and train.
    defer_compiler()
    if resume is None and environment_number("RANK", 0) == 0 and (note := note_on_plan(config)):
        print_note(f"note: {note}")
    return start_training(
        config,
        print_report,
        resume_from=resume,
        processes=processes,
        max_restarts=max_restarts,
    )


def print_report(config: RunConfig, result: "Summary | HocketError") -> int:
    """Print the end of a training in this process, and return the exit code."""
    if isinstance(result, HocketError):
        return end_with_error(result)
    from hocket.distributed.folder.restart import environment_number
    from hocket.distributed.world import joined_worlds
    from hocket.runs.own_code import named_code
    from hocket.runs.tables import summary_tables

    # Print the result in the main process.
    if joined_worlds.is_main():
        print_tables(*summary_tables(result))
        if config.hold_out:
            print_note(
                f"note: test loss and test error are of {config.hold_out:.3g} of the "
                "training examples, which were held out"
            )
        if result.early_stop:
            count = str(len(result.epochs)) + ("" if config.updates else f" of {config.epochs}")
            print_note(f"stopped early, after {count} epochs: {result.early_stop}")
    if result.state != "interrupted":
        return 1 if result.message else 0  # a warning has told of unsaved results
    # Tell how to go on after an interrupt.
    if joined_worlds.is_main():
        print_note(f"interrupted: {result.message}")
        if config.checkpoint_every:
            folder = shlex.quote(str(result.folder))
            world = environment_number("WORLD_SIZE", 1)
            processes = f" --processes {world}" if world > 1 else ""
            own = "".join(
                f" --{option} {shlex.quote(getattr(config, option))}"
                for option in named_code(vars(config))
            )
            print_note(f"resume with: hocket train --resume {folder}{own}{processes}")
    return 128 + result.signal

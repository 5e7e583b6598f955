"""The command line: its commands, and the exit codes of errors.

A command's module is imported when the command is called, and imports PyTorch when it runs, so
that ``--help`` answers at once.
"""

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cyclopts
from cyclopts import App

from hocket.cli.output import end_with_error, messages, print_error, print_warning
from hocket.errors import HocketError
from hocket.runs.config import parse_config, read_values
from hocket.runs.recipes import recipe

app = App(
    name="hocket",
    help="Train a network cut into stages that all work at the same time.",
    version_flags=["--version"],
    result_action="return_value",
)
COMMANDS = {
    "train": "Train a network; everything it leaves is in a new run folder.",
    "methods": "List the methods: delays, staleness, memory, locks, paper and options.",
    "draw": "Print or draw the program of a method, or a timeline that was measured.",
    "launch": "Run a Python script in several processes of this machine.",
    "plan": "Rehearse a network on this machine and forecast each method's speed and memory.",
}
for _name, _help in COMMANDS.items():
    app.command(f"hocket.cli.{_name}:{_name}_command", name=_name, help=_help)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0 for success, 130 after Ctrl-C, 2 or the exit code of its class for an error.
    """
    words = _separate_script_options(list(sys.argv[1:] if words is None else words))
    try:
        app.config = (_defaults(words),) if words[:1] == ["train"] else ()
    except HocketError as error:
        return end_with_error(error)
    try:
        return run_app(app, words)
    finally:
        app.config = ()


def run_app(app: App, words: Sequence[str]) -> int:
    """Run a command of an app; print errors and warnings, and return the exit code."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = print_warning
            return int(app(words, exit_on_error=False, print_error=False) or 0)
    except cyclopts.CycloptsError as error:
        return print_error(error)
    except HocketError as error:
        return end_with_error(error)
    except KeyboardInterrupt:
        messages.print("interrupted")
        return 130


def _separate_script_options(words: list[str]) -> list[str]:
    """Insert ``--`` after the script of ``hocket launch``: what follows it is the script's."""
    if words[:1] != ["launch"]:
        return words
    script = 1
    while script < len(words) and words[script].startswith("-") and words[script] != "--":
        has_no_value = "=" in words[script] or words[script] in app.help_flags
        script += 1 if has_no_value else 2
    if script < len(words) and words[script] != "--":
        words.insert(script + 1, "--")
    return words


def _defaults(words: Sequence[str]) -> cyclopts.config.Dict:
    """Build the defaults that --recipe, --config and --resume set for `hocket train`."""
    values: dict[str, Any] = {}
    if (name := _value_of("--recipe", words)) is not None:
        values |= recipe(name)
    file = _value_of("--config", words)
    if (run_dir := _value_of("--resume", words)) is not None:
        file = str(Path(run_dir) / "run.json")
    if file is not None:
        stored = read_values(Path(file))
        parse_config(stored, str(file))
        values |= {key: value for key, value in stored.items() if key != "run_dir"}
    given = {k.replace("_", "-"): v for k, v in values.items() if v is not None}
    return cyclopts.config.Dict({"train": given} if given else {}, source="the run file")


def _value_of(flag: str, words: Sequence[str]) -> str | None:
    """Return the value of an option on the command line; None if it is not given."""
    for index, word in enumerate(words):
        if word == flag and index + 1 < len(words):
            return words[index + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None

"""The command line: its commands, and the exit codes of errors.

A command's module is imported when the command is called, and imports PyTorch when it runs, so
that ``--help`` answers at once.
"""

import os
import shlex
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, get_args

import cyclopts
from cyclopts import App, Parameter, Token

from hocket.cli.output import console, end_with_error, print_error, print_note, print_warning
from hocket.cli.train_help import GroupedFormatter
from hocket.errors import HocketError, OptionError, unknown_name
from hocket.runs.config import parse_config, read_values
from hocket.runs.recipes import recipe


def _convert(kind: Any, tokens: Sequence[Token]) -> Any:
    """Convert the words of an option to its type, without rounding.

    Raises:
        ValueError: A whole number is wanted, and something else was given.
    """
    kinds = get_args(kind) or (kind,)
    if int in kinds:
        try:
            return int(tokens[0].value)
        except ValueError:
            if str in kinds:
                return tokens[0].value
            raise ValueError(f"wanted a whole number, got {tokens[0].value!r}") from None
    return cyclopts.convert(kind, tokens)


app = App(
    name="hocket",
    help="Train a network cut into stages that all work at the same time.",
    version_flags=["--version"],
    result_action="return_value",
    suppress_keyboard_interrupt=False,  # `run_app` tells of it
    console=console,
    default_parameter=Parameter(converter=_convert),
)
COMMANDS = {
    "train": (
        "Train a network. All output goes to a new folder under runs/.",
        "hocket train --epochs 4",
        "hocket train --method adl:accumulate=4 --stages 4 --network mlp:hidden=[64,64,64]",
        "hocket train --stages 2 --processes 2 --threads 1",
    ),
    "methods": (
        "List the methods: delays, staleness, memory, locks, paper and options.",
        "hocket methods --stages 4",
        "hocket methods --remedies",
        "hocket methods --stages 2 --markdown",
    ),
    "networks": (
        "List the networks: parameters, layers and options.",
        "hocket networks",
        "hocket networks resnet20",
        "hocket train --network mlp:hidden=[64,64,64]",
    ),
    "data": (
        "List the data sets: their files and options.",
        "hocket data",
        "hocket train --data synthetic:shape=[3,32,32],classes=10 --network resnet20",
        "hocket train --data text:context=64 --data-dir text.txt --network gpt",
    ),
    "draw": (
        "Print or draw what each stage does in each tick, or a timeline that was measured.",
        "hocket draw --method fdg --stages 3",
        "hocket draw --method ddg --stages 4 --out ddg.svg",
        "hocket draw --timeline runs/NAME/timeline.json",
    ),
    "launch": (
        "Run a Python script in several processes of this machine.",
        "hocket launch --processes 2 script.py",
        "hocket launch --processes 4 --threads 1 script.py --option-of-the-script",
    ),
}
"""What each command does, and examples."""
HINTS = {
    "--lr": "an optimizer has its learning rate: --optimizer SGD:lr=0.1",
    "--learning-rate": "an optimizer has its learning rate: --optimizer SGD:lr=0.1",
    "--momentum": "an optimizer has its momentum: --optimizer SGD:lr=0.1,momentum=0.9",
    "--weight-decay": "an optimizer has its weight decay: --optimizer AdamW:weight_decay=0.1",
    "--wd": "an optimizer has its weight decay: --optimizer AdamW:weight_decay=0.1",
    "--num-workers": "threads that prepare batches ahead have the name --workers",
    "--model": "the network has the name --network; `hocket networks` lists them",
    "--arch": "the network has the name --network; `hocket networks` lists them",
    "--dataset": "the data set has the name --data; `hocket data` lists them",
    "--gpus": "give --device cuda, and --processes with one process for each GPU",
    "--amp": "give --precision bf16, or --precision fp16",
    "--bf16": "give --precision bf16",
    "--fp16": "give --precision fp16",
    "--ema": "averages of the weights have the name --average-weights",
    "--patience": "give the number of epochs to --early-stopping",
    "--output-dir": "the folder of the run has the name --run-dir",
    "--output": "the folder of the run has the name --run-dir",
    "--grad-clip": "the largest norm of a gradient has the name --clip",
    "--wandb": "give --log-to wandb",
}
"""Notes on options that other programs have."""
ALL_NAMED = "every choice has a name: --method fdg --network resnet20 --data digits"


def _add_commands(package: str, helps: Mapping[str, Sequence[str]]) -> None:
    """Add the commands of a package, each the function ``NAME_command`` of a module NAME."""
    for name, (text, *examples) in helps.items():
        app.command(
            f"{package}.{name}:{name}_command",
            name=name,
            help=text,
            help_epilogue="\n".join(["```sh", *examples, "```"]),
            sort_key=0 if name == "train" else None,
            help_formatter=GroupedFormatter() if name == "train" else None,
        )


_add_commands("hocket.cli", COMMANDS)


@cache
def _add_commands_of_other_packages() -> None:
    for found in entry_points(group="hocket.commands"):
        _add_commands(found.module, found.load())


app.register_install_completion_command(
    help="Install the completion of commands and options in the shell.", group="Shell"
)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0 for success, 130 after Ctrl-C, 2 or the exit code of its class for an error.
    """
    words = list(sys.argv[1:] if words is None else words)
    if not words or words[0] not in COMMANDS:
        _add_commands_of_other_packages()
    try:
        launches = words[:1] == ["launch"]
        words = _separate_script_options(words) if launches else list(map(_expand_home, words))
        app.config = (_defaults(words),) if words[:1] == ["train"] else ()
        return run_app(app, words)
    except HocketError as error:
        return end_with_error(error)


def _expand_home(word: str) -> str:
    """Return an option with the user's home folder, which shells leave as a tilde after "=".

    >>> _expand_home("--data-dir=~no-such-user/data")
    '--data-dir=~no-such-user/data'
    """
    option, equals, value = word.partition("=")
    is_home = option.startswith("--") and value.startswith("~")
    return f"{option}{equals}{os.path.expanduser(value)}" if is_home else word


def run_app(app: App, words: Sequence[str]) -> int:
    """Run a command of an app; print errors and warnings, and return the exit code."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = print_warning
            return int(app(words, exit_on_error=False, print_error=False) or 0)
    except cyclopts.UnknownOptionError as error:
        hint = HINTS.get(flag := error.token.keyword or "")
        return print_error(OptionError(f"there is no {flag}; {hint}") if hint else error)
    except cyclopts.UnknownCommandError as error:
        known = [name for name in app if not name.startswith("-")]
        (word, *_) = error.unused_tokens or [""]
        return print_error(OptionError(unknown_name("command", word, known)))
    except cyclopts.UnusedCliTokensError as error:
        words = " ".join(error.unused_tokens or [])
        return print_error(OptionError(f"there is no place for {words!r}; {ALL_NAMED}"))
    except cyclopts.CycloptsError as error:
        return print_error(error)
    except HocketError as error:
        return end_with_error(error)
    except KeyboardInterrupt:
        print_note("interrupted")
        return 130


def _separate_script_options(words: list[str]) -> list[str]:
    """Insert ``--`` after the script of ``hocket launch``: what follows it is the script's.

    Raises:
        OptionError: The number of processes is given behind the script alone.
    """
    script = 1
    while script < len(words) and words[script].startswith("-") and words[script] != "--":
        has_no_value = "=" in words[script] or words[script] in app.help_flags
        script += 1 if has_no_value else 2
    if script < len(words) and words[script] != "--":
        count = _value_of("--processes", words[script:])
        if count is not None and _value_of("--processes", words[:script]) is None:
            command = shlex.join([*words[:script], "--processes", count, words[script]])
            raise OptionError(f"options of a launch come before its script: hocket {command}")
        words.insert(script + 1, "--")
    return words


def _defaults(words: Sequence[str]) -> cyclopts.config.Dict:
    """Build the defaults that --recipe, --config and --resume set for `hocket train`.

    Raises:
        OptionError: A file is wrong, or names what it must not choose alone.
    """
    # Start from a recipe or a file; a run that is resumed has one.
    values: dict[str, Any] = {}
    if (name := _value_of("--recipe", words)) is not None:
        values |= recipe(name)
    file = _value_of("--config", words)
    if name is not None and file is not None:
        raise OptionError(
            f"--recipe {name} and --config {file} are both settings to start from; give one, "
            "and the other's choices as options"
        )
    if (run_dir := _value_of("--resume", words)) is not None:
        file = str(Path(run_dir) / "run.json")
        if not os.path.exists(file):
            raise OptionError(
                f"{run_dir!r} is no run folder, as it has no run.json; give --resume the "
                "folder that `hocket train` printed, in runs/ by default"
            )
    if file is not None:
        values |= _choices_of(file, words)
    # Turn the choices into defaults of options.
    for length, other in (("--updates", "epochs"), ("--epochs", "updates")):
        if _value_of(length, words) not in (None, "0"):  # the length that is stored gives way
            values.pop(other, None)
    flags = {k.replace("_", "-"): v for k, v in values.items() if v is not None}
    return cyclopts.config.Dict({"train": flags} if flags else {}, source="the run file")


def _choices_of(file: str, words: Sequence[str]) -> dict[str, Any]:
    """Return the choices of a run file, which options on the command line replace."""
    # Read and check all choices.
    stored = read_values(Path(file))
    parse_config(stored, str(file))
    chosen = {key: value for key, value in stored.items() if key != "run_dir"}
    # Refuse code that a file must not choose alone, and tell of connections.
    from hocket.runs.own_code import named_code, refuse_code

    unnamed = [key for key in named_code(chosen) if _value_of(f"--{key}", words) is None]
    refuse_code([(key, chosen[key]) for key in unnamed], file)
    services = chosen.get("log_to", "none")
    if services != "none" and _value_of("--log-to", words) is None:
        print_note(f"{file!r} makes connections: log_to sends metrics to {services!r}")
    return chosen


def _value_of(flag: str, words: Sequence[str]) -> str | None:
    """Return the value of an option on the command line; None if it is not given."""
    for index, word in enumerate(words):
        if word == flag and index + 1 < len(words):
            return words[index + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None

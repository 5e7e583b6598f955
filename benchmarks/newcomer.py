"""The commands that a newcomer types first, one after the other in an empty folder."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cyclopts import Parameter

from benchmarks.harness.process import build_environment
from benchmarks.harness.record import Record
from benchmarks.harness.settings import check_settings

COMMANDS = (
    "hocket --help",
    "hocket train",
    "hocket train --lr 0.1",
    "hocket methods",
    "hocket train --method adl --stages 4 --processes 4",
    "hocket train --method fgd",
    "hocket networks",
    "hocket draw --method fdg --stages 3",
    "hocket plan --stages 2,4 --methods fdg,adl",
    "hocket report runs/* --out report.html",
)
"""They find what those before them have left."""
COLUMNS = 100
"""Width of the terminal, in letters."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class NewcomerSettings:
    """Settings of the measurement of the first commands.

    Attributes:
        out: Folder of the record.
        commands: Commands of a shell, each beginning with ``hocket``.
        threads: OpenMP threads of each process.

    Raises:
        OptionError: A setting is out of range.
    """

    out: Path = Path("records/newcomer")
    commands: Sequence[str] = COMMANDS
    threads: int = 1

    def __post_init__(self) -> None:
        check_settings(
            "cannot run the first commands",
            self,
            at_least={1: ("threads",)},
            problems=[
                f"{command!r} is no command of hocket; begin it with 'hocket '"
                for command in self.commands
                if not command.startswith("hocket ")
            ],
        )


DEFAULTS = NewcomerSettings()


def measure_newcomer(settings: NewcomerSettings = DEFAULTS) -> None:
    """Run each command once, and write what it printed and how long it took."""
    record = Record.from_settings("newcomer", settings)
    with TemporaryDirectory() as folder:
        rows = [run_command(each, Path(folder), settings.threads) for each in settings.commands]
    record.with_rows(rows).write(settings.out)


def run_command(command: str, folder: Path, threads: int) -> dict[str, Any]:
    """Run a command in a shell; return its seconds, its exit code and all that it printed.

    Args:
        command: The command, which begins with ``hocket``.
        folder: The folder to run it in.
        threads: OpenMP threads of its process.
    """
    program = shlex.join([sys.executable, "-P", "-m", "hocket"])
    environment = build_environment(threads) | {"COLUMNS": str(COLUMNS), "LC_ALL": "C.UTF-8"}
    start_s = time.perf_counter()
    before = os.times()
    ended = subprocess.run(
        program + command.removeprefix("hocket"),
        shell=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd=folder,
        env=environment,
    )
    wall_s, after = time.perf_counter() - start_s, os.times()
    cpu_s = after.children_user + after.children_system
    cpu_s -= before.children_user + before.children_system
    print(
        f"{command}: {wall_s:.1f} s, exit code {ended.returncode}", file=sys.stderr, flush=True
    )
    return {
        "row": command,
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "exit_code": ended.returncode,
        "output": [line.rstrip() for line in ended.stdout.splitlines()],
    }

"""Start-up times of hocket's commands, compared with ``import torch``."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

from cyclopts import Parameter

from benchmarks.harness.process import build_environment
from benchmarks.harness.record import Record
from benchmarks.harness.settings import check_settings
from hocket.errors import HocketError, unknown_name

BASE = "import torch"
FIRST_TICK = "hocket train, first tick"
COMMANDS: Mapping[str, Sequence[str]] = {
    BASE: ("-c", "import torch"),
    "import hocket": ("-c", "import hocket"),
    "from hocket import Trainer": ("-c", "from hocket import Trainer"),
    "hocket --version": ("-m", "hocket", "--version"),
    "hocket --help": ("-m", "hocket", "--help"),
    "hocket train --help": ("-m", "hocket", "train", "--help"),
    FIRST_TICK: ("-m", "benchmarks.harness.first_tick", "--epochs", "1"),
}
"""Arguments of Python for each row; the last row trains on digits until its first action."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class StartupSettings:
    """Settings of the measurement of start-up times.

    Attributes:
        out: Folder of the record.
        rows: Commands, by their names in `COMMANDS`; ``import torch`` is always timed as well.
        runs: Runs of each command, after one that is not timed.
        threads: OpenMP threads of each process.

    Raises:
        OptionError: A setting is out of range.
    """

    out: Path = Path("records/startup")
    rows: Sequence[str] = tuple(COMMANDS)
    runs: int = 10
    threads: int = 1

    def __post_init__(self) -> None:
        check_settings(
            "cannot measure start-up times",
            self,
            at_least={1: ("runs", "threads")},
            problems=[
                unknown_name("command", row, list(COMMANDS))
                for row in self.rows
                if row not in COMMANDS
            ],
        )


@dataclass(frozen=True)
class ProcessCost:
    """Cost of one process, from its start to its end.

    Attributes:
        wall_s: Wall time in seconds.
        cpu_s: Processor time in seconds, in user and kernel mode, of all its threads.
    """

    wall_s: float
    cpu_s: float


DEFAULTS = StartupSettings()


def measure_startup(settings: StartupSettings = DEFAULTS) -> None:
    """Run every command in rounds, each time in a new process, and write the record.

    Raises:
        HocketError: A command failed.
    """
    record = Record.from_settings("startup", settings)
    names = dict.fromkeys([BASE, *settings.rows])
    costs: dict[str, list[ProcessCost]] = {name: [] for name in names}
    for number in range(settings.runs + 1):
        for name in names:
            cost = run_command(name, settings.threads)
            if number:  # the first run reads files that later ones find in the page cache
                costs[name].append(cost)
    rows = [_build_row(name, costs[name], costs[BASE]) for name in names]
    for row in rows:
        line = f"{row['row']}: {row['wall_s']:.3f} s, processor {row['cpu_s']:.3f} s"
        print(f"{line}, {row['ratio']:.2f} times {BASE}", file=sys.stderr, flush=True)
    record.with_rows(rows).write(settings.out)


def run_command(name: str, threads: int) -> ProcessCost:
    """Run a command in a new process and return its cost.

    Args:
        name: Key of `COMMANDS`.
        threads: OpenMP threads of the process.

    Raises:
        HocketError: The command failed.
    """
    command = [sys.executable, "-P", *COMMANDS[name]]
    with TemporaryDirectory() as folder, TemporaryFile() as errors:
        if name == FIRST_TICK:
            command += ["--run-dir", str(Path(folder, "run"))]
        start_s = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=build_environment(threads),
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - start_s
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            reason = errors.read().decode(errors="replace").strip()
            raise HocketError(f"{name!r} ended with {process.returncode}: {reason}")
    return ProcessCost(wall_s, usage.ru_utime + usage.ru_stime)


def _build_row(
    name: str, costs: Sequence[ProcessCost], base: Sequence[ProcessCost]
) -> dict[str, Any]:
    """Return medians over runs, and ratios to the base of the same round."""
    pairs = list(zip(costs, base, strict=True))
    ratios = [one.wall_s / other.wall_s for one, other in pairs]
    return {
        "row": name,
        "wall_s": median(one.wall_s for one in costs),
        "cpu_s": median(one.cpu_s for one in costs),
        "ratio": median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "cpu_ratio": median(one.cpu_s / other.cpu_s for one, other in pairs),
    }

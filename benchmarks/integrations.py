"""Tests of each integration, with the versions of what it integrates."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from cyclopts import Parameter

from benchmarks.harness.record import Record
from benchmarks.harness.settings import check_settings
from benchmarks.versions import run_tests


class Integration(NamedTuple):
    """A place where people train, and what shows that Hocket works there.

    Attributes:
        packages: Packages whose versions are recorded.
        change: Lines of a program that change.
        tests: What pytest runs, below `tests`.
    """

    packages: Sequence[str]
    change: str
    tests: Sequence[str]


PAGES = "end_to_end/test_code_of_pages.py::test_the_code_of_the_page_on_"
LAUNCHERS = "end_to_end/test_clusters.py::test_a_launcher_of_scripts_gives_the_weights_of_one"
SCRIPT = "none"
INTEGRATIONS: Mapping[str, Integration] = {
    "transformers' Trainer": Integration(
        ("transformers", "accelerate", "peft"),
        "the class and its import",
        (
            "unit/integrations",
            "end_to_end/test_examples.py::test_transformers_trainer",
            f"{PAGES}transformers_runs",
        ),
    ),
    "a LightningModule": Integration(
        ("lightning",), "1 line becomes 7", (f"{PAGES}lightning_runs",)
    ),
    "torchrun": Integration(("torch",), SCRIPT, (f"{LAUNCHERS}_process[torch]",)),
    "accelerate launch": Integration(
        ("accelerate",), SCRIPT, (f"{LAUNCHERS}_process[accelerate]",)
    ),
    "submitit": Integration(
        ("submitit",),
        "1 line",
        (
            "end_to_end/test_clusters.py::test_tasks_of_submitit_give_the_weights_of_one_process",
        ),
    ),
    "SLURM, two machines": Integration(
        (), SCRIPT, ("end_to_end/test_two_machines.py::test_the_script_for_slurm_trains",)
    ),
    "Ray Train": Integration(
        ("ray",), "the report of a checkpoint", ("end_to_end/test_examples.py::test_ray",)
    ),
    "notebooks": Integration(
        ("nbclient", "ipykernel"),
        SCRIPT,
        ("end_to_end/test_notebook.py", f"{PAGES}notebooks_runs"),
    ),
    "macOS, Windows (Linux's modules hidden)": Integration(
        (), SCRIPT, ("end_to_end/test_other_systems.py",)
    ),
}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class IntegrationsSettings:
    """Settings of the tests of integrations.

    Attributes:
        out: Folder of the record.
        rows: Integrations to test; all if none is given.
        threads: OpenMP threads of each process.

    Raises:
        OptionError: A setting is out of range.
    """

    out: Path = Path("records/integrations")
    rows: Sequence[str] = tuple(INTEGRATIONS)
    threads: int = 1

    def __post_init__(self) -> None:
        unknown = [row for row in self.rows if row not in INTEGRATIONS]
        check_settings(
            "cannot test integrations",
            self,
            at_least={1: ("threads",)},
            not_empty=("rows",),
            problems=[f"{row!r} is none; use {', '.join(INTEGRATIONS)}" for row in unknown],
        )


DEFAULTS = IntegrationsSettings()


def measure_integrations(settings: IntegrationsSettings = DEFAULTS) -> None:
    """Run the tests of each integration under this interpreter, and write the record."""
    rows = []
    for name in settings.rows:
        packages, change, tests = INTEGRATIONS[name]
        selected = ["-m", "longer or not longer", *(f"tests/{test}" for test in tests)]
        found = run_tests(sys.executable, selected, settings.threads)
        versions = [f"{package} {installed_version(package)}" for package in packages]
        rows.append({"row": name, "versions": versions, "change": change, **found})
        print(f"{name}: {found['passed']} passed, {found['failed']} failed", file=sys.stderr)
    Record.from_settings("integrations", settings).with_rows(rows).write(settings.out)


def installed_version(package: str) -> str:
    """Return the installed version of a package, whose tests are skipped if there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"

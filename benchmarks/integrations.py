"""Tests of each integration, with the versions of what it integrates."""

import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cyclopts import Parameter

from benchmarks.harness.record import Record
from benchmarks.harness.settings import check_settings
from benchmarks.versions import run_tests

INTEGRATIONS: Mapping[str, Mapping[str, Any]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)


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
    record, rows = Record.from_settings("integrations", settings), []
    for name in settings.rows:
        one = INTEGRATIONS[name]
        selected = ["-m", "longer or not longer", *(f"tests/{test}" for test in one["tests"])]
        found = run_tests(sys.executable, selected, settings.threads)
        versions = [f"{package} {installed_version(package)}" for package in one["packages"]]
        rows.append({"row": name, "versions": versions, "change": one["change"], **found})
        print(f"{name}: {found['passed']} passed, {found['failed']} failed", file=sys.stderr)
    record.with_rows(rows).write(settings.out)


def installed_version(package: str) -> str:
    """Return the installed version of a package, whose tests are skipped if there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"

"""Tests under other versions of Python and PyTorch, one at a time."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cyclopts import Parameter

import benchmarks
import hocket
from benchmarks.harness.record import FILE, Record
from benchmarks.harness.settings import check_settings
from hocket.errors import HocketError, OptionError

ROOT = Path(benchmarks.__file__).resolve().parents[1]
TESTS = (
    "tests/contract/test_against_references.py",
    "tests/end_to_end/test_failures.py::test_several_processes_write_the_same_run_folder_as_one",
    "tests/end_to_end/test_trainings.py",
    "tests/unit/distributed/test_deferred_compiler.py",
    "tests/unit/partition/test_partial_module.py",
    "tests/unit/stage/test_linearize.py",
)
"""Methods and their references, cut networks, the command line, in one process and in two."""
PROBE = """
import json, platform, numpy, pytest, torch
print(json.dumps({
    "python": platform.python_version(),
    "torch": str(torch.__version__),
    "numpy": numpy.__version__,
}))
"""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class VersionsSettings:
    """Settings of the tests under several versions.

    Attributes:
        out: Folder of the record.
        python: Path or name of an interpreter that has PyTorch and what the tests need.
        tests: What pytest shall run: files, folders and single tests of the repository.
        threads: OpenMP threads of each process.

    Raises:
        OptionError: A setting is out of range.
    """

    out: Path = Path("records/versions")
    python: Path = Path("python")
    tests: Sequence[str] = TESTS
    threads: int = 1

    def __post_init__(self) -> None:
        check_settings(
            "cannot test versions",
            self,
            at_least={1: ("threads",)},
            not_empty=("tests",),
            problems=[
                f"there is no {test} in the repository; name files or folders of tests"
                for test in self.tests
                if not (ROOT / test.split("::")[0]).exists()
            ],
        )


DEFAULTS = VersionsSettings()


def measure_versions(settings: VersionsSettings = DEFAULTS) -> None:
    """Run the tests under an interpreter, and write versions and counts of outcomes.

    Rows of other versions that the record has already are kept, as few disks hold all builds of
    PyTorch at once.

    Raises:
        OptionError: The record has rows of other tests.
    """
    record = Record.from_settings("versions", settings)
    kept = Record.read(settings.out) if (settings.out / FILE).exists() else record
    if kept.settings["tests"] != record.settings["tests"]:
        raise OptionError(f"{settings.out} has rows of other tests; give another --out")
    program, versions = ask_versions(settings.python)
    origin = {"commit": record.commit, "source": record.source, "date": record.date}
    row = versions | run_tests(program, settings.tests, settings.threads) | origin
    print(
        "python {python}, torch {torch}: {passed} passed, {failed} failed, "
        "{skipped} skipped in {wall_s:.0f} s".format(**row),
        file=sys.stderr,
        flush=True,
    )
    rows = [row, *(each for each in kept.rows if each | versions != each)]
    record.with_rows(sorted(rows, key=_version_numbers)).write(settings.out)


def _version_numbers(row: Mapping[str, Any]) -> list[list[int]]:
    """Return the numbers in the versions of a row, which 2.9 and 2.10 have in this order."""
    return [[int(n) for n in re.findall(r"\d+", row[key])] for key in ("torch", "python")]


def ask_versions(interpreter: Path) -> tuple[str, dict[str, str]]:
    """Return the path of an interpreter, and its versions of Python, PyTorch and NumPy.

    Raises:
        HocketError: There is no such interpreter, or it cannot import what the tests need.
    """
    if not (program := shutil.which(interpreter)):
        raise HocketError(
            f"there is no interpreter {str(interpreter)!r}; give its path, or its name on PATH"
        )
    ended = subprocess.run(
        [program, "-P", "-c", PROBE], capture_output=True, text=True, check=False
    )
    if ended.returncode:
        reason = "".join(ended.stderr.strip().splitlines()[-1:])
        raise HocketError(
            f"{interpreter} cannot run the tests ({reason}); install the extra 'test' for it"
        )
    # Not resolved: a virtual environment is known by the path of its link.
    return os.path.abspath(program), json.loads(ended.stdout.splitlines()[-1])


def build_environment(threads: int) -> dict[str, str]:
    """Return the environment of a process with the code of this process, and these threads."""
    # The folders these packages were imported from, for packages that are not installed.
    folders = [str(Path(str(p.__file__)).resolve().parents[1]) for p in (hocket, benchmarks)]
    paths = [*folders, *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": str(threads)}


def run_tests(python: str, tests: Sequence[str], threads: int) -> dict[str, Any]:
    """Run tests under an interpreter; return counts of outcomes, seconds, names of failures.

    Raises:
        HocketError: The tests ended without a report.
    """
    command = [python, "-P", "-m", "pytest", "-p", "no:cacheprovider", "--tb=no", "-rfE"]
    start_s = time.perf_counter()
    ended = subprocess.run(
        [*command, *tests],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=build_environment(threads),
    )
    wall_s = time.perf_counter() - start_s
    *lines, last = ended.stdout.strip().splitlines() or [""]
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|skipped)", last)}
    if not counts:
        told = "\n".join([*lines[-4:], last, *ended.stderr.splitlines()[-2:]])
        raise HocketError(
            f"pytest under {python} ended with {ended.returncode} and no counts; install the "
            f"extra 'test' for it, or correct the names of the tests:\n{told}"
        )
    # Once each, though a test may fail and then its teardown as well.
    named = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", ended.stdout, re.MULTILINE)
    failures = list(dict.fromkeys(named))
    return {
        "passed": counts.get("passed", 0),
        "skipped": counts.get("skipped", 0),
        "failed": len(failures),
        "wall_s": wall_s,
        "failures": failures,
    }

"""The versions that the package names are those that were tried without a failure."""

import re
import tomllib
from pathlib import Path

from benchmarks.harness.record import Record

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TRIED = [row for row in Record.read(ROOT / "records/versions").rows if not row["failed"]]


def minors(name):
    """Return the versions of a program that were tried: pairs such as (3, 11), in order."""
    return sorted({tuple(map(int, row[name].split(".")[:2])) for row in TRIED})


def test_each_version_of_python_that_was_tried_has_a_classifier():
    found = re.findall(r"Python :: 3\.(\d+)", "\n".join(PROJECT["classifiers"]))
    assert [(3, int(minor)) for minor in found] == minors("python")
    assert PROJECT["requires-python"] == ">={}.{}".format(*minors("python")[0])


def test_pytorch_is_allowed_from_the_first_to_the_last_version_that_was_tried():
    (torch,) = (each for each in PROJECT["dependencies"] if each.startswith("torch"))
    (first, *_, (major, last)) = minors("torch")
    assert torch == "torch>={}.{},<{}.{}".format(*first, major, last + 1)

"""No limit and no order depends on the wall clock, which an administrator or NTP may set."""

import ast
from pathlib import Path

import pytest

import hocket

SOURCE = Path(hocket.__file__).parents[1]
WALL_CLOCK = {"time.time", "time.time_ns", "datetime.now", "datetime.today", "datetime.utcnow"}
ALLOWED = {
    "run_dir": ["time.strftime"],  # the name of a folder
    "record": ["datetime.now"],  # the date of a record
    "transformers": ["time.time"],  # the start of a speed that transformers measures
    "mlflow_tracker": ["time.time"],  # the date of a number, which MLflow wants
}
WALL_CLOCK |= {"date.today", "time.localtime", "time.gmtime", "time.strftime"}


def readings(text: str) -> list[str]:
    """Return the calls that read the wall clock, and the reads of times of files."""
    nodes = list(ast.walk(ast.parse(text)))
    calls = [ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)]
    names = {".".join(call.split(".")[-2:]): call for call in calls}
    files = [
        ast.unparse(node)
        for node in nodes
        if isinstance(node, ast.Attribute) and node.attr in ("st_mtime", "st_ctime", "getmtime")
    ]
    return [call for name, call in names.items() if name in WALL_CLOCK] + files


def test_no_module_reads_the_wall_clock():
    found = {file.stem: readings(file.read_text()) for file in SOURCE.rglob("*.py")}
    assert {name: calls for name, calls in found.items() if calls} == ALLOWED


@pytest.mark.parametrize(
    "text", ["time.time()", "datetime.datetime.now(UTC)", "file.stat().st_mtime"]
)
def test_a_reading_is_found(text):
    assert readings(text)

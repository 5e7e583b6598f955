"""Tests under other interpreters, and the table of what came out."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import integrations, newcomer
from benchmarks import versions as module
from benchmarks.harness.record import Record
from benchmarks.integrations import IntegrationsSettings, measure_integrations
from benchmarks.newcomer import NewcomerSettings, measure_newcomer
from benchmarks.report.render import render
from benchmarks.versions import (
    ROOT,
    VersionsSettings,
    ask_versions,
    measure_versions,
    run_tests,
)
from hocket.errors import HocketError, OptionError

THREE_OUTCOMES = """
import pytest
def test_passes(): pass
@pytest.fixture
def ending():
    yield
    raise OSError
@pytest.mark.parametrize("how", ["at once"])
def test_fails(how, ending): assert how == "later"
def test_is_skipped(): pytest.skip("no reason")
"""


def test_outcomes_are_counted_failures_named_and_other_versions_kept(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / "test_three.py").write_text(THREE_OUTCOMES)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    settings = VersionsSettings(
        out=tmp_path, python=Path(sys.executable), tests=("test_three.py",)
    )
    measure_versions(settings)
    (row,) = Record.read(tmp_path).rows
    assert (row["passed"], row["failed"], row["skipped"]) == (1, 1, 1)
    assert row["failures"] == ["test_three.py::test_fails[at once]"]
    assert row["python"] == ".".join(map(str, sys.version_info[:3]))
    assert "1 passed, 1 failed, 1 skipped" in capsys.readouterr().err
    found = {name: row[name] for name in ("passed", "failed", "skipped", "wall_s", "failures")}
    versions = {name: row[name] for name in ("python", "torch", "numpy")}
    monkeypatch.setattr(module, "run_tests", lambda *_: found)
    monkeypatch.setattr(module, "ask_versions", lambda _: (sys.executable, versions))
    older = row | {"torch": "2.9.1", "failures": []}
    Record.read(tmp_path).with_rows([row, older]).write(tmp_path)
    measure_versions(settings)
    assert [each["torch"] for each in Record.read(tmp_path).rows] == ["2.9.1", row["torch"]]
    (tmp_path / "test_two.py").touch()
    with pytest.raises(OptionError, match="has rows of other tests; give another --out"):
        measure_versions(replace(settings, tests=("test_two.py",)))
    render(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert f"| {row['python']} | {row['torch']} | {row['numpy']} | 1 | 1 | 1 |" in text
    assert "`test_three.py::test_fails[at once]`" in text


def test_an_interpreter_that_is_not_there_or_lacks_what_tests_need_is_told(
    tmp_path, monkeypatch
):
    with pytest.raises(HocketError, match=r"no interpreter '.*'; give its path, or its name"):
        ask_versions(tmp_path / "python")
    monkeypatch.setattr(module, "PROBE", "import no_such_torch")
    with pytest.raises(HocketError, match=r"cannot run .*no_such_torch.*install the extra"):
        ask_versions(Path(sys.executable))


def test_integrations_are_tested_and_shown_with_their_versions(tmp_path, monkeypatch):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_three.py").write_text(THREE_OUTCOMES)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    here = {"packages": ["torch", "no-such"], "change": "1 line", "tests": ["test_three.py"]}
    monkeypatch.setattr(integrations, "INTEGRATIONS", {"here": here})
    with pytest.raises(OptionError, match=r"'there' is none; use here"):
        IntegrationsSettings(rows=("there",))
    measure_integrations(IntegrationsSettings(out=tmp_path, rows=("here",)))
    render(tmp_path)
    line = f"| here | torch {torch.__version__}, no-such not installed | 1 line | 1 | 1 | 1 |"
    assert line in (tmp_path / "README.md").read_text()


def test_the_tests_of_integrations_exist():
    for integration in integrations.INTEGRATIONS.values():
        for test in integration["tests"]:
            file, _, name = test.partition("::")
            place = ROOT / "tests" / file
            assert place.exists()
            assert not name or f"def {name.partition('[')[0]}(" in place.read_text()


def test_the_newcomer_is_timed_and_a_failed_step_told(tmp_path, monkeypatch):
    called = []

    def run(command, **_):
        called.append(command)
        return SimpleNamespace(returncode=len(called) // 4, stderr="no space left")

    monkeypatch.setattr(newcomer, "subprocess", SimpleNamespace(run=run))
    measure_newcomer(NewcomerSettings(out=tmp_path))
    render(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert [line.count("|") for line in text.splitlines() if "launch" in line] == [3]
    assert "| `together` | 0 |" in text
    with pytest.raises(HocketError, match=r"(?s)venv.* ended with 1:.*no space left"):
        measure_newcomer(NewcomerSettings(out=tmp_path))


def test_a_record_is_of_the_time_and_code_before_its_programs_ran(tmp_path, monkeypatch):
    order, begin = [], Record.from_settings

    def note(name, value):
        return lambda *_, **__: order.append(name) or value

    monkeypatch.setattr(
        Record, "from_settings", lambda *of: order.append("begun") or begin(*of)
    )
    monkeypatch.setattr(integrations, "run_tests", note("tests", {"passed": 1, "failed": 0}))
    ended = SimpleNamespace(returncode=0)
    monkeypatch.setattr(newcomer, "subprocess", SimpleNamespace(run=note("step", ended)))
    measure_integrations(IntegrationsSettings(out=tmp_path, rows=("torchrun",)))
    measure_newcomer(NewcomerSettings(out=tmp_path))
    assert order == ["begun", "tests", "begun", "step", "step", "step"]


def test_tests_that_end_without_a_report_are_told(tmp_path, monkeypatch):
    (tmp_path / "conftest.py").write_text("import os; os._exit(3)")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    with pytest.raises(HocketError, match=r"ended with 3 and no counts; install the extra"):
        run_tests(sys.executable, ["."], threads=1)

"""The packages pass the checks of an index, and the wheel trains outside the repository."""

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import hocket

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.longer, pytest.mark.xdist_group("package")]  # built once


def run(*words, folder=ROOT):
    """Run a command without the source of this repository in its path; its output."""
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        words, cwd=folder, env=outside, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """Return the paths of wheel and sdist; the wheel is built from the sdist."""
    pytest.importorskip("build", reason="needs the extra package (./hocket test --longer)")
    folder = tmp_path_factory.mktemp("packages")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, source


def test_an_index_accepts_them(packages):
    assert "PASSED" in run(sys.executable, "-m", "twine", "check", "--strict", *packages)
    assert "OK" in run(sys.executable, "-m", "check_wheel_contents", packages[0])


def test_they_contain_the_source_and_nothing_else(packages):
    wheel, source = packages
    files = {str(file.relative_to(ROOT / "src")) for file in find_source()}
    packed = zipfile.ZipFile(wheel).namelist()
    assert {name for name in packed if ".dist-info/" not in name} == files
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{file}" for file in files} <= names
    assert {"LICENSE", "CITATION.cff", "constraints.txt", "examples/01_quickstart.py"} <= names
    assert not [name for name in names if re.match(r"\.ci|\.venv|runs/", name)]


def find_source():
    """Return the files of the source, without what Python writes next to them."""
    files = (ROOT / "src").rglob("*")
    return [f for f in files if f.is_file() and "__pycache__" not in f.parts]


def test_the_wheel_trains_from_another_folder(packages, tmp_path):
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python, command = (tmp_path / "venv/bin" / name for name in ("python", "hocket"))
    pinned = ("--quiet", "--constraint", ROOT / "constraints.txt")
    run(python, "-m", "pip", "install", *pinned, f"{packages[0]}[cli,data,plot]")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    where = run(python, "-c", "import hocket; print(hocket.__file__)", folder=elsewhere)
    assert where.startswith(str(tmp_path / "venv"))
    assert run(command, "--version", folder=elsewhere).strip() == hocket.__version__
    words = ("train", "--epochs", "1", "--processes", "2", "--run-dir", "run")
    run(command, *words, folder=elsewhere)
    summary = json.loads((elsewhere / "run/summary.json").read_text())
    assert len(summary["epochs"]) == 1
    run(command, "draw", "--method", "fdg", "--out", "fdg.svg", folder=elsewhere)
    assert (elsewhere / "fdg.svg").read_text().startswith("<?xml")

"""Every example runs alone, without warnings, and prints what it explains."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hocket

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FILES = sorted(EXAMPLES.glob("*.py"))


def run_example(name, folder):
    source = str(Path(hocket.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name, folder],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(line):
    return [float(word.rstrip("%")) for word in line.split() if re.match(r"[\d.]+%?$", word)]


def test_quickstart(tmp_path):
    text = run_example("01_quickstart.py", tmp_path)
    error = float(re.search(r"test error after 4 epochs: ([\d.]+)%", text)[1])
    assert error < 30
    assert "stage 0: gradients were 1.00 updates late" in text


def test_own_network(tmp_path):
    text = run_example("02_own_network.py", tmp_path)
    errors = [float(e) for e in re.findall(r"test error ([\d.]+)%", text)]
    assert len(errors) == 6
    assert errors[-1] < 20
    assert "saved 23 tensors: 0.0.weight" in text
    assert list(tmp_path.iterdir()) == []


def test_compare_methods(tmp_path):
    _, *rows = run_example("03_compare_methods.py", tmp_path).splitlines()
    columns = {row.split()[0]: numbers(row) for row in rows}
    assert list(columns) == ["bp", "ddg", "fr", "fdg", "adl", "dsp", "dgl", "dni"]
    assert all(row[0] < 70 for row in columns.values()), "guessing is 90 %"
    assert columns["fdg"][1:] == [3, 4, 4, 4]
    assert columns["dsp"][1:] == [3, 1, 4, 1]


def test_gradient_error(tmp_path):
    _, *rows = run_example("04_gradient_error.py", tmp_path).splitlines()
    for row in rows:
        shrink, stage, cosine, ratio = numbers(row)
        assert 0.5 < cosine <= 1
        # The gradient of stage 0 has crossed 2 edges, that of stage 2 none.
        assert ratio == pytest.approx(shrink ** (2 - stage), rel=0.2)
    assert len(rows) == 9


def test_draw_program(tmp_path):
    text = run_example("05_draw_program.py", tmp_path)
    assert "bp: 6 ticks" in text
    assert "fdg: 10 ticks, 24 busy ticks of stages, locks: none" in text
    assert {file.name for file in tmp_path.iterdir()} == {"bp.svg", "ddg.svg", "fdg.svg"}


def test_every_example_is_run_here():
    tests = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {file.stem.partition("_")[2] for file in FILES} <= tests


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_examples_are_short_and_say_what_is_to_be_learnt(file):
    text = file.read_text()
    assert len(text.splitlines()) < 60
    assert "What to learn:" in text

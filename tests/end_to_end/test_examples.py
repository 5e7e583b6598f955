"""Every example runs as it is printed, without warnings, and prints what it explains."""

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from end_to_end.namespaces import run_python
from end_to_end.test_two_machines import require_equal_bits
from unit.lab.studies.in_process import run_here

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FILES = sorted(EXAMPLES.glob("*.py"))
# Added to the example of Ray: stage 1 is killed once, in the middle of the second epoch.
KILLED = """
import os, signal

class Killed(hocket.callbacks.Callback):
    def on_step(self, trainer, events):
        once = Path(folder, "killed")
        if trainer.engine.tick_count == 70 and not (trainer.is_main_process or once.exists()):
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)

def train("""
ONE_PROCESS = """
ray.train.report = lambda metrics, checkpoint: None
train({"folder": sys.argv[1]})
"""


@pytest.fixture
def run_example(tmp_path, monkeypatch, capsys):
    """Return a function that runs an example in this process, in a folder of its own."""

    def run(name, *words):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [name, *words])
        with torch.random.fork_rng():
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        text = capsys.readouterr().out
        assert shape(text) == shape(shown_output(EXAMPLES / name))
        return text

    return run


def shown_output(file):
    """Return the output that an example shows in the comments at its end."""
    return file.read_text().partition("\n# It prints:\n#\n")[2].replace("#", "")


def shape(text):
    """Return the words of each line, with 0 for each number and without names of files."""
    lines = (re.sub(r"\d+(\.\d+)?", "0", line).split() for line in text.splitlines())
    return [words for words in lines if words and words[0] != "drawn"]


def numbers(line):
    return [float(word.rstrip("%")) for word in line.split() if re.match(r"[\d.]+%?$", word)]


def test_quickstart(tmp_path):
    """It runs alone, in a process that imports nothing else."""
    words = ("-W", "error", EXAMPLES / "01_quickstart.py")
    text = run_python(*words, folder=tmp_path, OMP_NUM_THREADS="1")
    assert shape(text) == shape(shown_output(EXAMPLES / "01_quickstart.py"))
    error = float(re.search(r"test error after 4 epochs: ([\d.]+)%", text)[1])
    assert error < 30
    assert "stage 0: gradients were 1.00 updates old" in text


def test_own_network(run_example, tmp_path):
    text = run_example("02_own_network.py")
    errors = [float(e) for e in re.findall(r"test error ([\d.]+)%", text)]
    assert len(errors) == 6
    assert errors[-1] < 20
    assert "saved 23 tensors: 0.0.weight" in text
    assert [file.name for file in tmp_path.iterdir()] == ["network.pt"]


def test_compare_methods(run_example):
    _, *rows = run_example("03_compare_methods.py").splitlines()
    columns = {row.split()[0]: numbers(row) for row in rows}
    assert list(columns) == ["bp", "ddg", "fr", "fdg", "adl", "dsp", "dgl", "dni"]
    assert all(row[0] < 70 for row in columns.values()), "guessing is 90 %"
    assert columns["fdg"][1:] == [3, 4, 4, 4]
    assert columns["dsp"][1:] == [3, 1, 4, 1]


def test_gradient_error(run_example):
    _, *rows = run_example("04_gradient_error.py").splitlines()
    for row in rows:
        shrink, stage, cosine, ratio = numbers(row)
        assert 0.5 < cosine <= 1
        # The gradient of stage 0 has crossed 2 edges, that of stage 2 none.
        assert ratio == pytest.approx(shrink ** (2 - stage), rel=0.2)
    assert len(rows) == 9


def test_draw_program(run_example, tmp_path):
    text = run_example("05_draw_program.py", str(tmp_path))
    assert "bp: 6 ticks" in text
    assert "fdg: 10 ticks, 24 busy ticks of stages, locks: none" in text
    assert {file.name for file in tmp_path.iterdir()} == {"bp.svg", "ddg.svg", "fdg.svg"}


def test_bert(run_example):
    pytest.importorskip("transformers")
    text = run_example("06_bert.py")
    assert float(re.findall(r"test loss ([\d.]+)", text)[-1]) < 0.3
    assert "stage 1 begins at bert.encoder.layer.1" in text


@pytest.mark.longer
@pytest.mark.parametrize(
    ("name", "package"),
    [("06_bert.py", "transformers"), ("14_transformers_trainer.py", "accelerate")],
)
def test_two_processes_print_what_one_does(name, package, run_example, tmp_path):
    pytest.importorskip(package)
    words = ("-m", "hocket", "launch", "--processes", "2", EXAMPLES / name)
    two = run_python(*words, folder=tmp_path, OMP_NUM_THREADS="1")
    assert two == run_example(name)


def test_gpt_muon(run_example):
    rows = run_example("07_gpt_muon.py").splitlines()
    methods = [row.split()[0] for row in rows[1:]]
    assert methods == ["adl:accumulate=4", "adl:accumulate=4+predict"]
    losses = [float(re.search(r"loss ([\d.]+)", row)[1]) for row in rows]
    assert all(loss < 4 for loss in losses), "guessing is 4.6"


def test_unet(run_example):
    overlap = re.search(r"discs found: ([\d.]+)%", run_example("08_unet.py"))[1]
    assert float(overlap) > 60


def test_two_machines(run_example, tmp_path):
    """One process runs it as well; tests/end_to_end/test_two_machines.py starts two."""
    text = run_example("09_two_machines.py", "one.pt")
    assert float(re.search(r"test error ([\d.]+)%", text)[1]) < 40
    assert (tmp_path / "one.pt").exists()


def test_own_method(run_example):
    text = run_example("10_own_method.py")
    assert "staleness [4.0, 0.0], MemoryCount(graphs=5, inputs=5, versions=5)" in text
    assert float(re.findall(r"test error ([\d.]+)%", text)[-1]) < 30


def test_own_remedy(run_example):
    plain, remedied = run_example("11_own_remedy.py").splitlines()
    assert remedied.startswith("fdg with trust: ")
    assert plain.split()[-1] != remedied.split()[-1], "it has an effect"


def test_study(run_example, tmp_path, monkeypatch):
    runs = run_here(monkeypatch)
    first = run_example("12_study.py", str(tmp_path / "record"))
    assert [row.partition(",")[0] for row in first.splitlines()] == ["bp", "fdg"]
    assert runs.started == 6
    assert run_example("12_study.py", str(tmp_path / "record")) == first
    assert runs.started == 6, "nothing is run twice"
    assert (tmp_path / "record/README.md").exists()


def test_search(run_example):
    found = re.search(
        r"rate ([\d.]+), shrink ([\d.]+): held-out loss ([\d.]+)", run_example("13_search.py")
    )
    rate, shrink, loss = map(float, found.groups())
    assert 0.01 <= rate <= 0.3
    assert 0.2 <= shrink <= 1
    assert loss < 1


def test_transformers_trainer(run_example):
    pytest.importorskip("accelerate")
    text = run_example("14_transformers_trainer.py")
    first, *_, last = map(float, re.findall(r"evaluation loss ([\d.]+)", text))
    assert last < first < 3.7, "guessing is 3.7"


@pytest.mark.longer
def test_ray(tmp_path):
    """A worker is killed, and the weights are those of one process."""
    pytest.importorskip("ray")
    example = (EXAMPLES / "15_ray.py").read_text()
    fit = "progress=False, callbacks=[Killed()]"
    killed = example.replace("def train(", KILLED).replace("progress=False", fit)
    (tmp_path / "killed.py").write_text(killed)
    text = run_python("killed.py", "ray", folder=tmp_path)
    assert (tmp_path / "ray/killed").exists()
    # Ray tells of the killed worker first.
    assert shape(text)[-1:] == shape(shown_output(EXAMPLES / "15_ray.py"))
    # Ray has a checkpoint of each epoch.
    assert len(list(tmp_path.glob("ray/*/checkpoint_*/manifest.json"))) == 3
    (tmp_path / "one.py").write_text(example.partition("if __name__")[0] + ONE_PROCESS)
    run_python("one.py", "one", folder=tmp_path)
    require_equal_bits(tmp_path / "ray/network.pt", tmp_path / "one/network.pt")


def test_own_loss(run_example):
    losses = re.findall(r"loss (\S+)", run_example("16_own_loss.py"))
    assert float(losses[-1]) < 0.5 * float(losses[0])


def test_every_example_is_run_here():
    tests = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {file.stem.partition("_")[2] for file in FILES} <= tests


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_examples_are_short_and_say_what_is_to_be_learnt(file):
    text = file.read_text()
    assert len(text.partition("\n# It prints:\n")[0].splitlines()) <= 64
    assert "What to learn:" in text
    assert shown_output(file).strip()


def test_the_list_of_examples_names_each_once():
    named = re.findall(r"\]\((\d\d_\w+\.(?:py|sh))\)", (EXAMPLES / "README.md").read_text())
    assert named == sorted(file.name for file in EXAMPLES.glob("[0-9]*"))

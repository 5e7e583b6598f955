"""The code of the tutorial, and of the pages on networks, remedies and evaluations, runs."""

import re
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).parents[2] / "docs"


def run_page(name, least):
    """Run the blocks of Python on a page, of which there are some, and return their names."""
    page = DOCS / name
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(blocks) >= least
    found = {"__name__": "page"}
    with torch.random.fork_rng():
        exec(compile("\n".join(blocks), str(page), "exec"), found)
    return found


def test_the_code_of_the_page_on_remedies_runs():
    """Each stage has the momentum of the paper's variant without stashed weights."""
    trainer = run_page("remedies.md", 2)["trainer"]
    groups = [stage.updater.optimizer.param_groups[0] for stage in trainer.stages]
    wanted = pytest.approx([0.9675, 0.945, 0.9225, 0.9])
    assert [group["betas"][0] for group in groups] == wanted


def test_the_code_of_the_page_runs(capsys):
    run_page("own-networks.md", 6)
    printed = capsys.readouterr().out
    assert printed.startswith("Plan(cuts=(")
    assert "control flow depends on tensor values computed before it" in printed


def test_the_code_of_the_tutorial_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page("tutorial.md", 3)
    printed = capsys.readouterr().out
    assert "updates by which gradients were late: (3.0, 1.0, 0.0)" in printed
    assert (tmp_path / "network.pt").exists()


def test_the_code_of_the_page_on_tasks_runs(capsys):
    run_page("tasks.md", 2)
    delays, staleness, *cosines = capsys.readouterr().out.splitlines()
    assert delays == "[6, 3, 0]"
    assert staleness.endswith(", 0.0)")
    assert len(cosines) == 3


def test_the_code_of_the_page_on_callbacks_runs():
    found = run_page("callbacks.md", 1)
    assert len(found["largest"].found) == len(found["history"])
    assert found["stopping"].best_epoch < len(found["history"])


def test_the_code_of_the_page_on_data_runs():
    assert run_page("data.md", 1)["trainer"].epoch == 1


def test_the_code_of_the_page_on_evaluation_runs(capsys):
    found = run_page("evaluation.md", 1)
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert sum(len(output) for output in found["outputs"]) == found["result"].samples
    top3 = found["result"].metrics["top3_error"]
    assert 0 < top3 < found["result"].error

"""The code of README.md, of the tutorial and of other pages runs."""

import re
from functools import partial
from pathlib import Path

import pytest
import torch

import hocket
from hocket.stage.layers.known_layers import KnownLayers
from unit.lab.studies.in_process import pretend_runs, run_here

DOCS = Path(__file__).parents[2] / "docs"
# Parts of programs, whose names tests/architecture/test_stable_names.py looks up.
FRAGMENTS = {"add-a-method.md", "reliability.md"}


def blocks_of(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def run_page(name, least):
    """Run the blocks of Python on a page, of which there are some, and return their names."""
    page = DOCS / name
    blocks = blocks_of(page)
    assert len(blocks) >= least
    found = {"__name__": "page", "hocket": hocket}
    with torch.random.fork_rng():
        exec(compile("\n".join(blocks), str(page), "exec"), found)
    return found


def test_each_page_with_code_is_run_here_or_has_fragments_only():
    pages = {page.name for page in DOCS.rglob("*.md") if blocks_of(page)}
    run = set(re.findall(r'run_page\("([\w.-]+)"', Path(__file__).read_text()))
    assert pages == run | FRAGMENTS | {"processes.md", "notebooks.md"}
    assert not run & FRAGMENTS


def test_the_code_of_the_readme_prints_what_is_shown(capsys):
    text = (DOCS.parent / "README.md").read_text()
    (shown,) = re.findall(r"^```\n(error .*?)```", text, re.DOTALL | re.MULTILINE)
    run_page("../README.md", 1)
    line = re.compile(
        r"^error ([\d.]+)%, staleness of stage 0: ([\d.]+) updates$", re.MULTILINE
    )
    printed, told = line.findall(capsys.readouterr().out), line.findall(shown)
    assert [staleness for _, staleness in printed] == [staleness for _, staleness in told]
    assert len(told) == 4
    # Another processor adds in another order, so the error may differ, but not by much.
    assert abs(float(printed[-1][0]) - float(told[-1][0])) < 5


def test_the_code_of_the_page_on_processes_runs():
    """Trainings of 300 epochs have one here, on the digits."""
    blocks = blocks_of(DOCS / "processes.md")
    digits = hocket.data.load("digits", batch_size=32)
    network = hocket.zoo.mlp(in_features=64, hidden=[64] * 3, num_classes=10)
    found = {"__name__": "page", "hocket": hocket, "torch": torch, "network": network}
    found |= {"train_loader": digits.train, "val_loader": digits.test}
    with torch.random.fork_rng():
        for block in blocks:
            assert "300" in block
            exec(block.replace("300", "1"), found)
    assert found["trainer"].state_dict().keys() == network.state_dict().keys()
    assert found["trainer"].epoch == 2


def test_the_code_of_the_page_on_remedies_runs():
    """Each stage has the momentum of the paper's variant without stashed weights."""
    trainer = run_page("remedies.md", 2)["trainer"]
    groups = [stage.updater.optimizer.param_groups[0] for stage in trainer.stages]
    wanted = pytest.approx([0.9675, 0.945, 0.9225, 0.9])
    assert [group["betas"][0] for group in groups] == wanted


def test_the_code_of_the_page_on_networks_runs(capsys):
    run_page("own-networks.md", 6)
    assert capsys.readouterr().out.startswith("Plan(cuts=(")


def test_the_code_of_the_page_on_cuts_runs(capsys):
    run_page("cuts.md", 2)
    printed = capsys.readouterr().out
    assert "control flow depends on tensor values computed before it" in printed


def test_the_code_of_the_page_on_optimizers_runs():
    found = run_page("optimizers.md", 4)
    assert found["trainer"].epoch == 0
    decays = [
        group["weight_decay"]
        for group in found["clipped"].stages[0].updater.optimizer.param_groups
    ]
    assert decays == [0.1, 0.0]


def test_the_code_of_the_tutorial_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page("tutorial.md", 3)
    printed = capsys.readouterr().out
    assert "staleness of the gradients, in updates: (3.0, 1.0, 0.0)" in printed
    assert (tmp_path / "network.pt").exists()


def test_the_code_of_the_page_on_research_runs(capsys):
    run_page("research.md", 2)
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


def test_the_code_of_the_page_on_performance_runs():
    gated = run_page("performance.md", 1)["Gated"](6)
    assert gated(torch.ones(2, 6)).shape == (2, 6)
    assert KnownLayers(gated).plain


def test_the_code_of_the_page_on_studies_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_here(monkeypatch)
    pretend_runs(monkeypatch, lambda config: 1.5 if "shrink" in config.method else 1.25)
    run_page("sweeps.md", 1)
    losses = [line.rpartition(" ")[2] for line in capsys.readouterr().out.splitlines()]
    assert losses == ["1.25", "1.5"]


def test_the_code_of_the_page_on_transformers_runs(tmp_path, monkeypatch):
    pytest.importorskip("accelerate")
    monkeypatch.chdir(tmp_path)
    trainer = run_page("transformers-trainer.md", 1)["trainer"]
    assert trainer.state.global_step == 4
    assert (tmp_path / "model/config.json").exists()


@pytest.mark.longer
@pytest.mark.filterwarnings("ignore")  # of Lightning
def test_the_code_of_the_page_on_lightning_runs():
    """Back-propagation in stages gives the weights of Lightning."""
    lightning = pytest.importorskip("lightning")
    found = run_page("lightning.md", 1)
    assert found["trainer"].epoch == 2
    whole, cut = found["Classifier"](), found["Classifier"]()
    cut.load_state_dict(whole.state_dict())
    lightning.Trainer(max_epochs=2, accelerator="cpu", barebones=True).fit(
        whole, found["loader"]
    )
    sgd = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
    with hocket.Trainer(cut, method="bp", optimizer=sgd) as trainer:
        trainer.fit(found["loader"], epochs=2, progress=False)
    pairs = zip(whole.parameters(), cut.parameters(), strict=True)
    assert all(torch.equal(weight, other) for weight, other in pairs)

"""Start-up: a command imports what it needs, and `--help` nothing of PyTorch."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import hocket
from end_to_end.namespaces import run_python
from hocket.__main__ import main
from hocket.cli.main import COMMANDS
from hocket_lab.commands import COMMANDS as OTHERS

COMPILER = ("torch._dynamo.eval_frame", "torch._inductor", "sympy")
# Needed for one kind of network, data, picture or log only.
SELDOM = (
    "IPython", "PIL", "datasets", "matplotlib", "mlflow", "pandas", "pyarrow", "scipy",
    "sklearn", "tensorboard", "torch.distributed.pipelining", "torchvision", "transformers",
    "wandb",
)  # fmt: skip
REPORT = "\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
# Each command in a copy of a process that has imported the program.
EACH = """
import contextlib, io, json, os, sys
from hocket.__main__ import main

for words in {commands}:
    if os.fork():
        os.wait()
        continue
    sys.argv = ["hocket", *words]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert main() == 0
    print(json.dumps(sorted(sys.modules)), flush=True)
    os._exit(0)
"""


def loaded(program, folder):
    """The modules that a program has imported at its end."""
    return set(json.loads(run_python("-c", program + REPORT, folder=folder).splitlines()[-1]))


def loaded_by_each(commands, folder):
    """The modules that each command has imported at its end."""
    lines = run_python("-c", EACH.format(commands=commands), folder=folder).splitlines()
    assert len(lines) == len(commands)
    return [set(json.loads(line)) for line in lines]


def among(modules, names):
    """Those of the names that are imported, or of which a submodule is."""
    return {name for name in names for m in modules if m == name or m.startswith(f"{name}.")}


@pytest.mark.parametrize(
    ("words", "policy", "turns"),
    [
        (["-m", "hocket", "methods"], None, 0),
        (["-c", "import hocket, torch"], None, 0),
        (["-c", "import hocket, torch"], "active", 30_000_000_000),
        (["-c", "import torch, hocket"], None, 300_000),  # too late: OpenMP has read it
    ],
)
def test_threads_sleep_while_they_wait(words, policy, turns, tmp_path, monkeypatch):
    """GNU's OpenMP prints how often a thread looks before it sleeps."""
    monkeypatch.setenv("OMP_DISPLAY_ENV", "verbose")
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if policy is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    command = [sys.executable, *words]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=600
    )
    assert f"GOMP_SPINCOUNT = '{turns}'" in done.stderr


def test_help_and_version_import_nothing_that_computes(tmp_path):
    commands = [
        ["--version"],
        ["--help"],
        *([name, "--help"] for name in {**COMMANDS, **OTHERS}),
    ]
    for words, modules in zip(commands, loaded_by_each(commands, tmp_path), strict=True):
        assert not among(modules, ("torch", "numpy", *SELDOM))
        assert {m for m in modules if m.startswith("hocket.")} <= {
            "hocket.__main__", "hocket.files", "hocket.cli", "hocket.cli.main",
            "hocket.cli.output", "hocket.cli.train_help", "hocket.errors", "hocket.options",
            "hocket.options.own_function",
            "hocket.options.common_options", "hocket.options.texts",
            "hocket.options.hints", "hocket.options.named", "hocket.options.ranges",
            "hocket.options.require", "hocket.runs", "hocket.runs.config",
            "hocket.runs.recipes", "hocket.standard_stream", "hocket.training",
            "hocket.training.results", "hocket.training.results.plain_console",
            "hocket.version", f"hocket.cli.{words[0]}",
        }  # fmt: skip
        lab = {m for m in modules if m.startswith("hocket_lab.")}
        known = ("commands", f"commands.{words[0]}", "planner", "planner.devices")
        assert lab <= {f"hocket_lab.{name}" for name in known}


def test_the_package_imports_its_parts_when_they_are_used(tmp_path):
    modules = loaded("import hocket", tmp_path)
    assert {m for m in modules if m.startswith("hocket")} == {"hocket", "hocket.version"}
    assert "torch" not in modules
    modules = loaded("import hocket; hocket.FDG", tmp_path)
    assert "hocket.methods.fdg" in modules
    assert "hocket.training.trainer" not in modules


NAMES = """
import hocket, torch
hocket.Trainer, hocket.zoo, hocket.data
"""
TRAINING = """
torch.set_num_threads(1)
network = hocket.zoo.mlp(in_features=4, hidden=[4], num_classes=2)
sgd = lambda weights: torch.optim.SGD(weights, lr=0.1)
trainer = hocket.Trainer(network, stages=1, optimizer=sgd)
trainer.fit([(torch.zeros(2, 4), torch.tensor([0, 1]))] * 3, epochs=1, progress=False)
"""


def test_the_trainer_imports_neither_the_command_line_nor_the_compiler(tmp_path):
    """Nor does a training import what only the command line needs."""
    lines = run_python("-c", NAMES + REPORT + TRAINING + REPORT, folder=tmp_path).splitlines()
    before, after = (set(json.loads(line)) for line in lines)
    for modules in (before, after):
        other = ("cyclopts", "hocket.cli", "hocket.runs", "hocket_lab", *SELDOM)
        assert not among(modules, other)
    assert not among(before, COMPILER)


def test_a_training_imports_nothing_that_it_does_not_use(tmp_path):
    words = ["train", "--epochs", "1", "--network", "mlp:hidden=[8]", "--threads", "1"]
    (modules,) = loaded_by_each([words], tmp_path)
    assert "hocket.data.digits" in modules
    assert "hocket_lab" not in modules
    # PyTorch itself imports sympy when a gradient is given to a backward.
    assert not among(modules, {*SELDOM, *COMPILER} - {"sympy"})


TICKS = """
import sys
import torch, hocket
from hocket.distributed.launching.deferred_compiler import defer_compiler

defer_compiler()  # as the command line does
torch.manual_seed(0)
trainer = hocket.Trainer(
    hocket.zoo.mlp(in_features=4, hidden=[4, 4], num_classes=2),
    stages=3,
    optimizer=lambda weights: torch.optim.SGD(weights, lr=0.1),
)
inputs, targets = torch.randn(6, 4), torch.tensor([0, 1, 0, 1, 0, 1])
trainer.prepare(inputs)
before = set(sys.modules)
for _ in range(6):
    trainer.step(inputs, targets)
imported = set(sys.modules) - before
print([name for name in imported if name.startswith(("sympy", "torch.fx", "torch._dynamo"))])
"""


def test_no_tick_imports_what_a_backward_needs(tmp_path):
    """It would count as work of the stage whose action comes first."""
    assert run_python("-c", TICKS, folder=tmp_path) == "[]\n"


def test_text_needs_no_library_for_pictures(tmp_path):
    for modules in loaded_by_each([["methods"], ["draw"]], tmp_path):
        assert not among(modules, (*SELDOM, *COMPILER))


# Without an extra: its name, and how to get it, in one line.

WITHOUT = """
import contextlib, io, json, sys
from hocket.__main__ import main

said = []
for missing, words in {commands}:
    # None in the table of modules makes an import fail as if the package were not there.
    sys.modules[missing] = None
    sys.argv = ["hocket", *words.split()]
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        code = main()
    said.append((code, errors.getvalue()))
    del sys.modules[missing]
print(json.dumps(said))
"""
EXTRAS = {
    ("cyclopts", "--help"): "cli",
    ("matplotlib", "draw --out p.svg"): "plot",
    ("sklearn", "train"): "data",
    ("tensorboard", "train --tensorboard"): "tensorboard",
    ("wandb", "train --log-to wandb"): "wandb",
    ("mlflow", "train --log-to mlflow"): "mlflow",
    ("datasets", "train --data folder --data-dir ."): "hf",
}


def test_whoever_lacks_an_extra_gets_its_name_in_one_line(tmp_path):
    answers = json.loads(run_python("-c", WITHOUT.format(commands=[*EXTRAS]), folder=tmp_path))
    for extra, (code, said) in zip(EXTRAS.values(), answers, strict=True):
        assert code == 2
        assert said.startswith("error: ")
        assert said.count("\n") == 1
        assert f"pip install 'hocket[{extra}]'" in said
    assert list(tmp_path.iterdir()) == []


def test_another_missing_module_of_the_command_line_is_no_missing_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "hocket.cli.main", None)
    with pytest.raises(ModuleNotFoundError, match=r"hocket\.cli\.main"):
        main()


# Public names.


def test_public_names_are_those_of_the_type_checker():
    tree = ast.parse(Path(hocket.__file__).read_text())
    (checking,) = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    names = {alias.asname or alias.name for node in checking.body for alias in node.names}
    assert names == set(hocket.__all__)
    assert set(dir(hocket)) == names | {"__version__"}
    assert all(getattr(hocket, name) is not None for name in names)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'hocket' has no attribute 'Trainr'"):
        _ = hocket.Trainr

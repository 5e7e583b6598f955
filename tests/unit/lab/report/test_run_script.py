"""The script of a run trains to its bits, whatever its options."""

import ast
import runpy
import sys
import warnings
from pathlib import Path

import pytest
import torch

from contract.small import bits
from contract.test_options_have_effects import RUN, SAME, ran, small
from hocket.cli.main import main
from hocket.runs.resolve import ResolvedRun
from hocket_lab.report.run_script import write_script
from unit.lab.report.made_runs import make_run

# Files and figures of a run folder, which a script does not write.
OF_THE_FOLDER = {
    "data_dir", "log_every", "gradient_error_every", "record_timeline", "tensorboard",
    "log_to", "weights_format", "run_dir",
}  # fmt: skip
# Nothing that a short training in one process leaves depends on these; one would compile.
UNSEEN = {
    "batchnorm", "checksum", "compile", "cuda_graphs", "meet", "replica_delay", "replicas",
    "slow_timeout_s", "streams", "timeout_s",
}  # fmt: skip
CHOICES = {
    **{name: {**row.beside, name: row.values[1]} for name, row in RUN.items()},
    **{name: {**beside, name: value} for name, (value, beside) in SAME.items()},
    "plan": {"plan": "hidden1"},
    "own network": {"network": "own.py:build", "threads": 1},
    "Muon": {"optimizer": "Muon:lr=0.1", "weight_decay_on": "matrices"},
    "schedulers": {"scheduler": "ConstantLR:total_iters=3+StepLR:step_size=9"},
}
OWN_CODE = {"own network": ("--network", "own.py:build")}
OWN = """
import hocket

def build(in_features, num_classes):
    import beside

    return hocket.zoo.mlp(in_features=in_features, hidden=[7], num_classes=num_classes)
"""


@pytest.mark.parametrize("name", sorted(CHOICES.keys() - OF_THE_FOLDER - UNSEEN))
def test_a_script_trains_to_the_bits_of_the_run(name, tmp_path, monkeypatch, capsys, request):
    request.addfinalizer(lambda: torch.set_num_threads(1))  # a script may set another number
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    Path("beside.py").touch()
    folder = ran(tmp_path, **CHOICES[name])
    capsys.readouterr()
    words = ["script", str(folder), *OWN_CODE.get(name, ())]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        assert main([*words, "--out", "train.py"]) == 0
        assert main(words) == 0
        assert Path("train.py").read_text() == capsys.readouterr().out
        monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(tmp_path)])
        sys.modules.pop("beside", None)
        runpy.run_path("train.py")
    files = {file.name for file in folder.glob("*.pt")}
    for file in files | {"network.pt"}:
        assert bits(torch.load(file)) == bits(torch.load(folder / file)), file


@pytest.mark.parametrize("name", sorted(UNSEEN))
def test_a_script_has_the_other_options_of_the_run(name):
    value = CHOICES[name][name]
    written = f'"{value}"' if isinstance(value, str) else value
    run = ResolvedRun.from_config(small(**CHOICES[name]))
    assert f"    {name}={written},\n" in write_script(run, "a run")


def test_code_that_a_folder_names_is_run_only_if_the_user_names_it(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("raise SystemExit('it ran')")
    make_run(tmp_path / "run", network="own.py:build", method="fdg+own.py:Half")
    assert main(["script", "run", "--network", "own.py:build"]) == 2
    told = capsys.readouterr().err
    assert "it runs own.py:Half for method = 'fdg+own.py:Half'" in told
    assert "give --method fdg+own.py:Half as well" in told
    assert "network" not in told
    assert main(["script", "run", "--network", "mlp"]) == 2
    assert "network is 'mlp', and the run has 'own.py:build'" in capsys.readouterr().err


def test_any_name_of_a_folder_is_text_in_its_script_and_no_line():
    name = 'run\U0001f600\udcff"""\n1 / 0\n"""'
    text = write_script(ResolvedRun.from_config(small()), name)
    assert ast.get_docstring(ast.parse(text)).endswith(f"trained {name}.")


def test_a_folder_without_a_run_is_refused_and_so_is_a_file_that_cannot_be_written(
    tmp_path, capsys
):
    run, long = make_run(tmp_path / "run"), tmp_path / ("x" * 300)
    assert main(["script", str(long)]) == 2
    assert "no run.json" in capsys.readouterr().err
    assert main(["script", str(run), "--out", str(long)]) == 2
    assert "cannot write the script to" in capsys.readouterr().err

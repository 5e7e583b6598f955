"""The command line: files that it writes, output, and refused options."""

import json
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
import torch

import hocket
from contract.small import bits
from hocket import zoo
from hocket.cli.main import COMMANDS, HINTS, _separate_script_options, app
from hocket.cli.train_help import FIRST_OF_GROUP
from hocket.data import DATA
from hocket.methods import METHODS
from hocket.runs.config import RunConfig
from hocket_lab.commands import COMMANDS as OTHER_COMMANDS
from unit.lab.studies.in_process import NAN_NETWORK, TINY

RUN_FILES = {
    *(".lock", "run.json", "environment.json", "plan.json", "metrics.jsonl", "network.pt"),
    "summary.json",
}
QUICK = ("--network", "mlp:hidden=[16,16]", "--epochs", "1")
SMALL = "synthetic:shape=[3,8,8],examples=8,test_examples=8"
pytestmark = pytest.mark.usefixtures("here")


def read_json(file):
    return json.loads(Path(file).read_text())


def read_metrics(folder):
    return [
        json.loads(row) for row in (Path(folder) / "metrics.jsonl").read_text().splitlines()
    ]


def read_weights(folder):
    return torch.load(Path(folder) / "network.pt", weights_only=True)


# Commands that succeed.


def test_a_training_prints_a_table_and_leaves_a_run_folder(call):
    code, out, err = call("train", "--epochs", 2)
    assert code == 0
    assert "held out" not in err
    for title in ("test error", "samples/s", "delay", "staleness"):
        assert title in out
    assert "2 ticks" in out
    assert "1.00 updates" in out
    assert [line.partition(":")[0] for line in err.splitlines()] == [
        "processes",
        "epoch 1/2",
        "epoch 2/2",
    ]
    (folder,) = Path("runs").iterdir()
    assert str(folder) in out
    assert {file.name for file in folder.iterdir()} == RUN_FILES
    assert read_json(folder / "run.json") == RunConfig(epochs=2, run_dir=folder).as_dict()
    assert read_json(folder / "environment.json")["versions"]["torch"] == torch.__version__
    summary = read_json(folder / "summary.json")
    assert (summary["state"], summary["message"]) == ("finished", "")
    assert f"{summary['epochs'][-1]['evaluation']['error']:.2%}" in out
    assert {row["kind"] for row in read_metrics(folder)} == {"backward", "update", "epoch"}
    names = [name for name, _ in hocket.zoo.mlp().named_parameters()]
    assert list(read_weights(folder)) == names


def test_an_early_stop_is_told_in_a_line(call):
    def stopped(*words):
        still = ("--batch-size", 512, "--optimizer", "SGD:lr=1e-30", "--early-stopping", 2)
        code, _, err = call("train", *QUICK[:2], *still, *words)
        assert code == 0
        return err.splitlines()[-1]

    last = stopped("--epochs", 9, "--run-dir", "mine")
    reason = read_json("mine/summary.json")["early_stop"]
    assert re.fullmatch(r"the test loss has not fallen below \S+ for 2 epochs, .* 1", reason)
    assert last == f"stopped early, after 3 of 9 epochs: {reason}"
    assert stopped("--updates", 40).startswith("stopped early, after 3 epochs: the test loss")
    assert "stopped early" not in stopped("--epochs", 3, "--run-dir", "whole")
    assert read_json("whole/summary.json")["early_stop"] == ""


def test_a_number_of_updates_wins_over_the_epochs_of_a_run_file(call):
    words = ("--updates", 30, "--evaluate-every", 12)
    assert call("train", *QUICK, "--run-dir", "first")[0] == 0
    code, _, err = call("train", "--config", "first/run.json", *words, "--run-dir", "second")
    assert code == 0
    assert "update 24: test loss" in err
    rows = read_metrics("second")
    evaluations = [row for row in rows if row["kind"] == "evaluation"]
    assert [(row["updates"], row["tick"]) for row in evaluations] == [(12, 12), (24, 24)]
    assert [row["updates"] for row in rows if row["kind"] == "epoch"][-1] == 30
    back = ("--config", "second/run.json", "--epochs", 1, "--run-dir", "third")
    assert call("train", *back, "--evaluate-every", 0)[0] == 0
    assert bits(read_weights("third")) == bits(read_weights("first"))
    none = ("--config", "first/run.json", "--updates", 0, "--run-dir", "fourth")
    assert call("train", *none)[0] == 0
    assert read_json("fourth/run.json")["epochs"] == read_json("first/run.json")["epochs"]


@pytest.mark.filterwarnings("ignore:stage 0, with layer:UserWarning")  # most work is in it
def test_a_run_file_repeats_the_training_bit_by_bit_and_options_win_over_it(call):
    words = ("--method", "fdg:shrink=0.5", "--stages", 3)
    assert call("train", *QUICK, *words, "--run-dir", "first")[0] == 0
    assert call("train", "--config", "first/run.json", "--run-dir", "second")[0] == 0
    assert call("train", "--config=first/run.json")[0] == 0
    (third,) = Path("runs").iterdir()
    assert bits(read_weights("first")) == bits(read_weights("second"))
    assert bits(read_weights("first")) == bits(read_weights(third))
    words = ("--seed", 1, "--method", "ddg", "--run-dir", "other")
    assert call("train", "--config", "first/run.json", *words)[0] == 0
    changed = {"seed": 1, "method": "ddg", "run_dir": "other"}
    assert read_json("other/run.json") == read_json("first/run.json") | changed
    assert bits(read_weights("first")) != bits(read_weights("other"))


def test_options_win_over_a_recipe(call):
    words = ("--data", "digits", "--plan", "balanced", *QUICK, "--hold-out", 0.1)
    code, _, told = call("train", "--recipe", "fdg-cifar", *words, "--run-dir", "mine")
    assert code == 0
    assert "of 0.1 of the training examples, which were held out" in told
    config = read_json("mine/run.json")
    wanted = {"network": "mlp:hidden=[16,16]", "data": "digits", "epochs": 1, "batch_size": 128}
    assert config.items() >= wanted.items()
    assert config["scheduler"] == "MultiStepLR:milestones=[150,225,275],gamma=0.1"


def test_methods_networks_and_data_sets_are_listed_with_their_options(call):
    code, out, err = call("methods", "--stages", 3)
    assert (code, err) == (0, "")
    assert all(f"│ {name} " in out for name in METHODS)
    assert "methods on 3 stages" in out
    assert "shrink=1.0" in out
    code, out, err = call("networks")
    assert (code, err) == (0, "")
    assert re.search(r"│ resnet20 +│ +269,722 │ +11 │ ResNet-20", out)
    assert re.search(r"│ gpt .*vocab=256, context=64", out)
    assert all(f"│ {name} " in out for name in zoo.NETWORKS)
    code, out, err = call("data")
    assert (code, err) == (0, "")
    assert re.search(r"│ cifar10 +│ +needed │ CIFAR-10: .*subset=None, augment=True", out)
    assert re.search(r"│ digits +│ +│ 1437 training", out)
    assert all(f"│ {name} " in out for name in DATA)


# Refusals.

BAD = {
    "unknown method": ("--method fgd", "unknown method 'fgd' (did you mean 'fdg'?)"),
    "unknown option of a network": ("--network mlp:hiden=[3]", "did you mean 'hidden'?"),
    "PyTorch refuses": (f"--network resnet18:num_classes=-3 --data {SMALL}", "PyTorch refuses"),
    **{
        f"{option} as an option of {flag}": (f"{flag} {name}:{option}=x", f"option {option!r}")
        for flag, name, options in (
            ("--method", "fdg", ["name", "options", "self"]),
            ("--network", "mlp", ["name", "shape", "classes"]),
            ("--data", "digits", ["name", "chosen"]),
        )
        for option in options
    },
    **{
        f"--{setting} as an option of a data set": (
            f"--data synthetic:{setting}=3",
            f"is no option of a data set; give it as --{setting} ({setting.replace('-', '_')}=",
        )
        for setting in ("seed", "batch-size", "data-dir", "workers", "mixup", "cutmix")
    },
    "unknown recipe": ("--recipe fdg-cifer", "unknown recipe 'fdg-cifer'"),
    "recipe without its data": ("--recipe fdg-cifar", "pass their folder with --data-dir"),
    "recipe and run file": ("--recipe gpt-characters --config run.json", "are both settings"),
    "network for other data": ("--network gpt", "'gpt' does not take the data 'digits', whose"),
    "network before data": ("--network mlpp --data cifar10 --data-dir none", "network 'mlpp'"),
    "file before data": ("--network own.py:net --data cifar10 --data-dir none", "'own.py'"),
    "missing folder": ("--data cifar10 --data-dir none", "no cifar10 in none: found nothing"),
    "more stages than layers": ("--stages 99", "cannot cut this network into 99 stages"),
    "missing run file": ("--config none.json", "cannot read the run file 'none.json'"),
    "no run file": ("--config", "--config requires an argument"),
    "run folder that cannot be made": ("--run-dir /proc/none/here", "'/proc/none/here'"),
    "half a process": ("--processes 1.5", "--processes: wanted a whole number, got '1.5'"),
    "half a restart": ("--max-restarts 0.4", "--max-restarts: wanted a whole number"),
    "unknown precision": ("--precision fp8", '"fp32", "bf16", "fp16"'),
    "two lengths": ("--updates 3 --epochs 3", "a training ends after one of the two"),
    "unknown flag": ("--epoch 3", "Unknown option: --epoch. Did you mean --epochs?"),
    "a word too much": ("fdg", "there is no place for 'fdg'; every choice has a name"),
}


@pytest.mark.parametrize(("words", "said"), BAD.values(), ids=BAD)
def test_bad_choices_are_refused_before_anything_is_made(refused, words, said):
    assert said in refused("train", *words.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("trian", "unknown command 'trian' (did you mean 'train'?); there are: train,"),
        ("--method fdg", "--method"),
        ("draw --method fgd", "did you mean 'fdg'?"),
        ("draw --stages 0", "has 0 stages"),
        ("draw --batches 0", "batches is 0"),
        ("draw --out fdg.gif", "'fdg.gif'; use a name in .svg, .png or .pdf"),
        ("draw --out /nope/a.svg", "out is '/nope/a.svg', and there is no folder"),
        ("plan --picture /nope/a.svg", "picture is '/nope/a.svg', and there is no folder"),
        ("plan --plan-out /nope/a.json", "plan_out is '/nope/a.json', and there is no folder"),
        ("methods --stages 0", "stages is 0"),
        ("methods --remedies --markdown", "markdown are for the table of methods"),
        ("methods --remedies --stages 4", "stages and markdown are for the table of methods"),
        ("methods fdg", "fdg"),
    ],
)
def test_other_commands_refuse_as_well(refused, words, said):
    assert said in refused(*words.split())


@pytest.mark.parametrize("flag", HINTS)
def test_options_of_other_programs_are_told_with_the_right_one(refused, flag):
    assert refused("train", flag, "1") == f"error: there is no {flag}; {HINTS[flag]}\n"
    named = {name[2:].replace("-", "_") for name in re.findall(r"--[a-z-]+", HINTS[flag])}
    assert all(hasattr(RunConfig, name) for name in named - {"processes"})


def test_help_begins_with_train_and_each_option_of_a_training_stands_in_one_group(call):
    named = re.findall(r"^│ ([a-z]+) ", call("--help")[1], re.MULTILINE)
    assert named[0] == "train"
    assert set(named) == {*COMMANDS, *OTHER_COMMANDS}
    code, out, _ = call("train", "--help")
    assert code == 0
    assert set(re.findall("╭─ (.+?) ─", out)) == set(FIRST_OF_GROUP.values())
    found = re.findall(r"^│ --([a-z-]+) ", out, re.MULTILINE)
    assert found[:5] == ["recipe", "resume", "config", "processes", "max-restarts"]
    options = {field.name for field in fields(RunConfig)} | {"config", "recipe", "resume"}
    for name in options | {"processes", "max_restarts"}:
        assert len(re.findall(rf"│ --{name.replace('_', '-')} ", out)) == 1


@pytest.mark.parametrize(("name", "texts"), {**COMMANDS, **OTHER_COMMANDS}.items())
def test_help_ends_with_examples_that_are_commands(call, name, texts):
    out = " ".join(call(name, "--help")[1].split())
    _, *examples = texts
    assert len(examples) >= 2
    assert out.endswith(" ".join(examples))
    for example in examples:
        words = shlex.split(example)[1:]
        words = _separate_script_options(words) if name == "launch" else words
        assert app.parse_args(words, exit_on_error=False, print_error=False)


def test_a_shell_completes_commands_and_options(call, here, monkeypatch):
    monkeypatch.setenv("HOME", str(here))
    file = here / "completion.bash"
    assert call("--install-completion", "--shell", "bash", "--output", file)[0] == 0
    script = file.read_text()
    assert all(f"{name}" in script for name in COMMANDS)
    assert "--checkpoint-every" in script


def test_a_bad_run_file_is_refused_and_a_run_folder_is_never_written_over(refused, here):
    (here / "mine").mkdir()
    (here / "mine" / "run.json").write_text('{"epoch": 3, "stages": "two"}')
    told = refused("train", "--config", "mine/run.json")
    assert "'epoch' (did you mean 'epochs'?)" in told
    assert "stages is 'two'; wanted a whole number" in told
    restarts = ("--processes", "2", "--max-restarts", "1", "--checkpoint-every", "1")
    for words in ((), restarts):
        told = refused("train", *QUICK, "--run-dir", "mine", *words)
        assert "the run folder 'mine' exists already; name another with --run-dir" in told


# Trainings that end early.


def test_numbers_that_explode_end_it_and_the_finite_weights_before_are_kept(call, here):
    words = (*QUICK, "--optimizer", "SGD:lr=1e30", "--run-dir", "mine")
    code, _, err = call("train", *words)
    assert code == 2
    assert " became " in err
    assert "stage 1, batch 1, tick 2" in err
    assert "the weights reached are in mine" in err
    assert "Traceback" not in err
    assert {file.name for file in (here / "mine").iterdir()} == RUN_FILES
    assert all(value.isfinite().all() for value in read_weights("mine").values())
    summary = read_json("mine/summary.json")
    assert summary["state"] == "diverged"
    assert "stage 1, batch 1, tick 2" in summary["message"]


# A batch that becomes NaN.


OWN = ("--network", "own.py:build", "--plan", "1", "--epochs", "1", "--log-every", "1")
OWN += ("--data", TINY["data"], "--batch-size", "8", "--run-dir", "run")


def test_an_exit_before_the_end_is_an_error_that_tells_its_place_and_keeps_the_weights(call):
    Path("own.py").write_text(NAN_NETWORK.replace('float("nan")', '__import__("sys").exit()'))
    code, _, err = call("train", *OWN)
    assert code == 2
    assert re.search(r"at \S+own.py:7, would .*\nthe weights reached are in run\n", err)
    assert {file.name for file in Path("run").iterdir()} == RUN_FILES


def test_a_batch_that_is_skipped_is_counted_and_told(call):
    Path("own.py").write_text(NAN_NETWORK)
    code, out, err = call("train", *OWN, "--on-nan", "skip")
    assert code == 0
    assert "1 batch skipped" in err
    assert "batches skipped" in out.partition("finished: run")[2], "a table of its own"
    summary = read_json("run/summary.json")
    assert [stage["skipped"] for stage in summary["stages"]] == [1, 1]
    assert summary["epochs"][0]["skipped"] == [1, 1]
    rows = read_metrics("run")
    place = {"stage": 0, "batch": 1, "tick": 1, "epoch": 0}
    row = {"kind": "skipped", **place, "fault": "output became nan"}
    assert [each for each in rows if each["kind"] == "skipped"] == [row]
    learned = {each["batch"] for each in rows if each["kind"] == "backward"}
    assert learned == {0, 2, 3}

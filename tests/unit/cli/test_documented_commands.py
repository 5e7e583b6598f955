"""Every command that is printed in README.md and docs/ runs, in a small form made by one rule.

The rule: a data set in a folder of the reader's becomes a synthetic one, trainings have one
epoch and one process, which gives the same bits, and a plan is made for a small network.
Records quote the commands by which they were measured at their commits; they are left out.
"""

import re
import shlex
import sys
from pathlib import Path

import pytest

from hocket.cli.main import main
from hocket.partition import Plan
from unit.lab.studies.in_process import run_here

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
IMAGES = "synthetic:shape=[3,32,32],examples=128,test_examples=16"
NETS = """
from hocket import zoo


def vit(num_classes, in_features, layers=3):
    return zoo.mlp(in_features=in_features, hidden=[8] * layers, num_classes=num_classes)
"""
STUDY = """
[base]
network = "mlp:hidden=[4]"
epochs = 1

[grid]
method = "bp"
stages = 1
"""
# Studies of hours, and their data.
STUDIES = {
    "gpt-characters-2000": "tinyshakespeare.txt",
    "resnet8-cifar10-held-out": "cifar10",
    "resnet20-cifar10": "cifar10",
}
# Commands that are no whole ones or need processes, and the tests that run them.
ELSEWHERE = {
    "hocket launch": "tests/unit/distributed/test_launch.py",
    "hocket launch --processes 2 script.py": "tests/unit/distributed/test_launch.py",
    "hocket launch --processes 2 script.py ...": "tests/unit/distributed/test_launch.py",
    "hocket train --processes": "tests/end_to_end/test_failures.py",
    "hocket train --network nets.py:vit --plan vit.layers.1 ...":
    "tests/unit/cli/test_cli.py",
    "hocket networks": "tests/unit/cli/test_cli.py",
    "hocket sweep": "tests/unit/cli/test_cli_sweep.py",
    **{
        f"hocket sweep benchmarks/studies/{study}.toml --data-dir {data}":
        "tests/unit/benchmarks/test_studies.py"
        for study, data in STUDIES.items()
    },
    "hocket watch runs": "tests/unit/lab/report/test_live.py",
    "hocket watch runs/*": "tests/unit/lab/report/test_live.py",
    "hocket report": "tests/unit/lab/report/test_report.py",
    "hocket report sweeps/mine --out study.html": "tests/unit/lab/report/test_report.py",
    "hocket draw --method new": "docs/add-a-method.md",  # of a method that the reader writes
    "hocket train --network mlp --data digits --stages 2 --epochs 1 --compile":
    "tests/contract/test_compiled.py",  # which compiles smaller stages
    "hocket test": "hocket",  # the wrapper, which runs these tests
}  # fmt: skip


def documented():
    """Return the commands of Hocket that are printed in the pages."""
    commands = {}
    for page in PAGES:
        text = re.sub(r"<!-- record: .*?<!-- end -->", "", page.read_text(), flags=re.DOTALL)
        blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        lines = "".join(blocks).replace("\\\n", " ").splitlines()
        prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        lines += re.findall(r"`([^`]+)`", prose)
        for line in lines:
            command = " ".join(line.partition("  #")[0].split()).removeprefix("./")
            if re.match(r"hocket (?!bench)[a-z]", command):  # "bench" is a word of old records
                commands.setdefault(command)
    return list(commands)


RUN = [command for command in documented() if command not in ELSEWHERE]


def make_small(command):
    """Return the words of a command in its small form."""
    name, *words = shlex.split(command.removeprefix("hocket "))
    if name in ("report", "script"):  # whose paths are expanded by the shell
        return [name, *("runs/NAME" if word == "runs/*" else word for word in words)]
    if name == "sweep":
        return [name, *(word for word in words if word not in ("--data-dir", "DIR"))]
    values = {}
    for word in words:
        if word.startswith("--"):
            values[word] = []
        else:
            values[list(values)[-1]].append(word)
    if "text.txt" in words:
        values["--batch-size"] = ["16"]
    elif "--data-dir" in values:
        del values["--data-dir"]
        values["--data"] = [IMAGES]
    if name == "train":
        values.pop("--processes", None)
        values.pop("--max-restarts", None)
        values["--epochs"] = ["1"]
        values.pop("--updates", None)
        if values.get("--recipe") and "text.txt" not in words:
            values["--data"] = [IMAGES]
    if name == "plan":
        values |= {"--network": ["mlp"], "--data": ["digits"], "--stages": ["2"]}
        values.setdefault("--methods", ["fdg"])
    return [name, *(word for option in values.items() for word in (option[0], *option[1]))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the files that the commands name."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "package").mkdir()
    for file in ("nets.py", "package/nets.py"):
        (folder / file).write_text(NETS)
    (folder / "text.txt").write_text("to be or not to be, " * 50)
    Plan(("hidden1", "hidden2")).write(folder / "plan.json")
    small = ("train", "--epochs", "1", "--checkpoint-every", "500")
    (folder / "study.toml").write_text(STUDY)
    for name in ("NAME", "mine"):
        run = ("--run-dir", str(folder / "runs" / name))
        assert main([*small, *run, "--record-timeline"]) == 0
        (folder / "runs" / name / "run.json").write_text('{"checkpoint_every": 500}')
    return folder


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("command", RUN)
def test_a_documented_command_runs(command, folder, tmp_path, monkeypatch, capsys):
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    words = make_small(command)
    if not {"--resume", "--config", "report", "script", "--timeline"} & set(words):
        (tmp_path / "runs").unlink()
    if "--plan-out" in words:
        (tmp_path / "plan.json").unlink()
    run_here(monkeypatch)  # the runs of a study
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main(words) == 0, capsys.readouterr().err


def test_no_documented_command_is_left_out_without_a_reason():
    assert len(RUN) > 20
    assert set(ELSEWHERE) <= set(documented())
    assert all((ROOT / file).exists() for file in ELSEWHERE.values())

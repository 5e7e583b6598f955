"""Two machines under torchrun: two network namespaces, which share only the files.

The tests run the commands of the documentation.
"""

import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.harness.nodes import INTERFACE
from contract.processes import wait_until
from end_to_end.namespaces import environment, machines, run_on_both, torchrun
from hocket.cli.main import main
from hocket.errors import HangError
from hocket.partition import Plan

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EXAMPLES = ROOT / "examples"

# Only its last two lines depend on processes: one of them writes the file.
SCRIPT = """
import sys
import torch, hocket

torch.set_num_threads(1)
torch.manual_seed(0)
inputs = torch.randn(96, 8)
batches = list(zip(inputs.split(16), (inputs[:, 0] > 0).long().split(16)))
trainer = hocket.Trainer(
    hocket.zoo.mlp(in_features=8, hidden=[16, 16], num_classes=2),
    stages=2,
    method=hocket.FDG(),
    optimizer=lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
)
trainer.fit(batches, batches, epochs=3, progress=False)
if trainer.is_main_process:
    torch.save(trainer.network.state_dict(), sys.argv[1])
"""
# Imitation of srun: runs a command in a task on each node.
SRUN = """
import os, subprocess, sys

def start(number, enter):
    variables = os.environ | {{"SLURM_PROCID": str(number), "SLURM_LOCALID": "0"}}
    return subprocess.Popen([*enter, *sys.argv[1:]], env=variables)

tasks = [start(number, enter) for number, enter in enumerate({enter!r})]
sys.exit(max(task.wait() for task in tasks))
"""


@pytest.fixture(scope="module")
def link():
    with machines() as link:
        yield link


@pytest.fixture
def folders(tmp_path):
    return [tmp_path / "first", tmp_path / "second"]


def documented(kind: str, page: str) -> list[str]:
    """Return the blocks of a kind on a page of the documentation."""
    return re.findall(rf"```{kind}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def on_each(command: str) -> list[list[str]]:
    """Return a command of the first machine, for each machine."""
    return [
        ["bash", "-c", command.replace("--node-rank 0", f"--node-rank {n}")] for n in (0, 1)
    ]


def torchrun_arguments(block: str) -> list[str]:
    """Return the module that torchrun runs in a command, and its arguments."""
    words = shlex.split(block.replace("\\\n", " "))
    return words[words.index("-m") :]


@pytest.fixture
def run_here(tmp_path, monkeypatch):
    """Function that runs the script or module of a torchrun command in this process."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> None:
        if words[:2] == ("-m", "hocket"):
            assert main(words[2:]) == 0
            return
        monkeypatch.setattr(sys, "argv", list(words))
        runpy.run_path(words[0], run_name="__main__")

    return run


def require_success(results: list[subprocess.CompletedProcess[str]]) -> None:
    errors = "\n".join(result.stderr for result in results)
    assert [result.returncode for result in results] == [0, 0], errors


def require_equal_bits(one: Path, other: Path) -> None:
    one, other = (torch.load(file, weights_only=True) for file in (one, other))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def file_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def write_script(tmp_path: Path, text: str = SCRIPT) -> str:
    script = tmp_path / "script.py"
    script.write_text(text)
    return str(script)


def test_a_training_on_two_machines_gives_the_weights_of_one_process(
    link, folders, run_here, tmp_path
):
    block, *_ = documented("sh", "several-machines.md")
    results = run_on_both(link, folders, on_each(block))
    require_success(results)
    run_here(*torchrun_arguments(block))
    require_equal_bits(folders[0] / "run/network.pt", tmp_path / "run/network.pt")
    assert file_names(folders[0]) == [
        ".lock", "environment.json", "metrics.jsonl", "network.pt", "plan.json", "run.json",
        "summary.json",
    ]  # fmt: skip
    # Each stage writes its own metrics on its machine.
    assert file_names(folders[1]) == ["metrics.stage1.jsonl"]
    assert "finished" in results[0].stdout
    assert results[1].stdout == ""


def test_the_example_gives_the_same_weights_on_two_machines(link, folders, run_here, tmp_path):
    program, first = EXAMPLES / "09_two_machines", link.nodes[0].address
    commands = [["sh", f"{program}.sh", first, number, "weights.pt"] for number in "01"]
    results = run_on_both(link, folders, commands)
    require_success(results)
    run_here(f"{program}.py", "alone.pt")
    require_equal_bits(folders[0] / "weights.pt", tmp_path / "alone.pt")
    assert file_names(folders[1]) == []
    assert "one stage on each machine" in results[0].stdout
    assert results[1].stdout == ""


def test_replicas_on_two_machines_give_the_weights_of_one(link, folders, run_here, tmp_path):
    _, block, _ = documented("sh", "several-machines.md")
    require_success(run_on_both(link, folders, on_each(block)))
    run_here(*torchrun_arguments(block), "--processes", "4")
    require_equal_bits(folders[0] / "both/network.pt", tmp_path / "both/network.pt")
    assert file_names(folders[1]) == [f"metrics.stage1-replica{n}.jsonl" for n in (0, 1)]


def test_a_plan_for_unequal_machines_trains_on_both(link, folders, tmp_path, monkeypatch):
    train, _, plan = documented("sh", "several-machines.md")
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(plan)[1:]) == 0
    for folder in folders:
        folder.mkdir()
        shutil.copy("plan.json", folder)
    require_success(run_on_both(link, folders, on_each(f"{train.rstrip()} --plan plan.json")))
    assert Plan.read(folders[0] / "run/plan.json") == Plan.read("plan.json")


def test_the_script_for_slurm_trains(link, tmp_path):
    (block,) = documented("sbatch", "clusters.md")
    script = tmp_path / "job.sh"
    script.write_text(block)
    srun = tmp_path / "srun"
    enter = [node.command() for node in link.nodes]
    srun.write_text(f"#!{sys.executable}\n{SRUN.format(enter=enter)}")
    srun.chmod(0o755)
    slurm = {"SLURM_NTASKS": "2", "SLURM_JOB_ID": "123456789"}
    variables = environment()
    done = subprocess.run(
        link.nodes[0].command("bash", str(script)),  # on the first node, as SLURM does
        cwd=tmp_path,
        env=variables | slurm | {"PATH": f"{tmp_path}:{variables['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "network.pt" in file_names(tmp_path / "run")


@pytest.mark.parametrize("stage", [0, 1])
def test_a_failure_on_either_machine_is_reported_on_both(link, folders, tmp_path, stage):
    fault = f"""
class Fault(torch.nn.Module):
    calls = 0

    def forward(self, value):
        Fault.calls += self.training
        if Fault.calls == 5:
            raise ArithmeticError("the fault of the test")
        return value

trainer.network[{2 * stage}].append(Fault())
trainer.fit("""
    script = write_script(tmp_path, SCRIPT.replace("trainer.fit(", fault))
    commands = [torchrun(link, number, script, "weights.pt") for number in (0, 1)]
    results = run_on_both(link, folders, commands)
    assert [result.returncode for result in results] == [1, 1]
    assert "ArithmeticError: the fault of the test" in results[stage].stderr
    other = results[1 - stage].stderr
    told = f"stage {stage} failed:" in other
    # The store ends with the first machine, perhaps before the second has asked it why.
    assert told or (stage == 0 and "connection to stage 0 is gone" in other)
    assert not told or "ArithmeticError: the fault of the test" in other


def test_a_machine_that_is_cut_off_is_named_and_ends_itself(folders, tmp_path):
    endless = "epochs=100_000, on_epoch=lambda _: open('begun', 'w').close(),"
    text = SCRIPT.replace("stages=2,", "stages=2, timeout_s=15,").replace("epochs=3,", endless)
    script = write_script(tmp_path, text)

    def cut() -> None:
        wait_until((folders[0] / "begun").exists, 1000)
        second = link.nodes[1]
        down = ["ip", "link", "set", INTERFACE, "down"]
        subprocess.run(second.command(*down), check=True)

    # Other machines than those of the fixture, whose link must stay up.
    with machines() as link:
        # Without torchrun, which itself waits for minutes when it is cut off.
        first = link.nodes[0].address
        world = f"WORLD_SIZE=2 MASTER_ADDR={first} MASTER_PORT=29500"
        commands = [
            ["env", *world.split(), f"RANK={rank}", sys.executable, script, "weights.pt"]
            for rank in (0, 1)
        ]
        results = run_on_both(link, folders, commands, meanwhile=cut)
    assert [result.returncode for result in results] == [HangError.exit_code] * 2
    for result in results:
        assert re.search(r"waited \d+ s for", result.stderr)
        assert "does not answer: it is stopped, or cut off" in result.stderr

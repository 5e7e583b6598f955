"""Two machines under torchrun: two network namespaces, which share nothing but the files."""

import subprocess
import sys
import time

import pytest
import torch

from end_to_end.namespaces import SOURCE, Ended, machines, torchrun
from hocket.run import Run
from hocket.train import train

pytestmark = pytest.mark.timeout(240)

# Nothing in it speaks of processes, but that only one of them writes the file.
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
if trainer.leads:
    torch.save(trainer.network.state_dict(), sys.argv[1])
"""


@pytest.fixture(scope="module")
def link():
    with machines() as link:
        yield link


@pytest.fixture
def folders(tmp_path):
    return [tmp_path / "first", tmp_path / "second"]


def require_success(ended: list[Ended]) -> None:
    assert [end.code for end in ended] == [0, 0], "\n".join(end.err for end in ended)


def require_equal_bits(one, other):
    one, other = (torch.load(file, weights_only=True) for file in (one, other))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def names_in(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_a_training_over_two_machines_is_that_of_one_process(link, folders, tmp_path):
    words = ("--method", "fdg", "--stages", "2", "--epochs", "2", "--threads", "1")
    ended = torchrun(link, folders, "-m", "hocket", "train", *words, "--out", "run")
    require_success(ended)
    alone = train(Run(method="fdg", stages=2, epochs=2, threads=1, out=tmp_path / "alone"))
    require_equal_bits(folders[0] / "run/network.pt", alone.folder / "network.pt")
    assert names_in(folders[0]) == [
        "environment.json", "metrics.jsonl", "network.pt", "run.json", "summary.json",
    ]  # fmt: skip
    # Each stage writes its own metrics where it is.
    assert names_in(folders[1]) == ["metrics.stage1.jsonl"]
    assert "finished" in ended[0].out
    assert ended[1].out == ""


def test_a_script_for_one_process_gives_the_same_weights_on_two_machines(
    link, folders, tmp_path
):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    require_success(torchrun(link, folders, str(script), "weights.pt"))
    subprocess.run(
        [sys.executable, str(script), str(tmp_path / "alone.pt")],
        env={"PYTHONPATH": str(SOURCE)},
        check=True,
    )
    require_equal_bits(folders[0] / "weights.pt", tmp_path / "alone.pt")
    assert names_in(folders[1]) == []


def test_replicas_over_two_machines_are_those_of_one(link, folders, tmp_path):
    words = (
        "-m", "hocket", "train", "--stages", "2", "--replicas", "2", "--epochs", "1",
        "--threads", "1", "--out", "run",
    )  # fmt: skip
    require_success(torchrun(link, folders, *words, per_node=2))
    subprocess.run(
        [sys.executable, *words, "--processes", "4"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(SOURCE)},
        check=True,
        capture_output=True,
    )
    require_equal_bits(folders[0] / "run/network.pt", tmp_path / "run/network.pt")
    assert names_in(folders[1]) == [f"metrics.stage1-replica{n}.jsonl" for n in (0, 1)]


@pytest.mark.parametrize("stage", [0, 1])
def test_a_failure_on_either_machine_is_told_on_both(link, folders, tmp_path, stage):
    script = tmp_path / "script.py"
    script.write_text(
        SCRIPT.replace(
            "trainer.fit(",
            f"""
class Fault(torch.nn.Module):
    calls = 0

    def forward(self, value):
        Fault.calls += self.training
        if Fault.calls == 5:
            raise ArithmeticError("the fault of the test")
        return value

trainer.network[{2 * stage}].append(Fault())
trainer.fit(""",
        )
    )
    ended = torchrun(link, folders, str(script), "weights.pt")
    assert [end.code for end in ended] == [1, 1]
    for end in ended:
        assert f"stage {stage} failed" in end.err or end is ended[stage]
        assert "the fault of the test" in end.err


def test_a_machine_that_is_cut_off_is_named_and_ends_itself(folders, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        SCRIPT.replace("stages=2,", "stages=2,\n    timeout_s=5,").replace(
            "epochs=3,", "epochs=100_000, on_epoch=lambda _: open('begun', 'w'),"
        )
    )

    def cut() -> None:
        while not (folders[0] / "begun").exists():
            time.sleep(0.1)
        second = link.nodes[1]
        subprocess.run(
            second.command("ip", "link", "set", second.interface, "down"), check=True
        )

    # Of its own, as the others would not like what becomes of it.
    with machines() as link:
        ended = torchrun(link, folders, str(script), "weights.pt", meanwhile=cut)
    assert [end.code for end in ended] == [1, 1]
    for end in ended:
        assert "waited 5 s for" in end.err
        assert "does not answer: it is stopped, or cut off" in end.err

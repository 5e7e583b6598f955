"""Launchers of clusters start trainings of two stages, to the weights of one process.

`pip install 'ray[train]' submitit accelerate` brings those that are missing.
"""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from end_to_end.test_examples import EXAMPLES
from end_to_end.test_two_machines import SCRIPT, require_equal_bits, write_script
from end_to_end.torchrun import TEST_PATH

pytestmark = [pytest.mark.longer, pytest.mark.xdist_group("clusters")]

COMMANDS = {
    "torch": ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
    "accelerate": [
        *("accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"),
        *("--main_process_port", "0"),
    ],
}
SUBMITS = """
import runpy, sys
import submitit

def train(script):
    submitit.helpers.TorchDistributedEnvironment().export()
    sys.argv[:] = [script, "weights.pt"]
    runpy.run_path(script, run_name="__main__")

executor = submitit.LocalExecutor("jobs")
executor.update_parameters(tasks_per_node=2, timeout_min=5)
executor.submit(train, sys.argv[1]).results()
"""
# Added to the example of Ray: stage 1 is killed once, in the middle of the second epoch.
KILLED = """
import os, signal
from hocket.callbacks import Callback

class Killed(Callback):
    def on_step(self, trainer, events):
        once = Path(folder, "killed")
        if trainer.engine.tick_count == 70 and not (trainer.is_main_process or once.exists()):
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)

def train("""


def run(folder, *words):
    """Run Python in a folder, with the threads and without the variables of a user."""
    done = subprocess.run(
        [sys.executable, *words],
        check=False,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": TEST_PATH, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the weights of the script in one process, and the script."""
    folder = tmp_path_factory.mktemp("alone")
    script = write_script(folder)
    run(folder, script, "weights.pt")
    return folder / "weights.pt", script


@pytest.mark.parametrize("launcher", COMMANDS)
def test_a_launcher_of_scripts_gives_the_weights_of_one_process(launcher, alone, tmp_path):
    pytest.importorskip(launcher)
    weights, script = alone
    run(tmp_path, "-m", *COMMANDS[launcher], script, "weights.pt")
    require_equal_bits(tmp_path / "weights.pt", weights)


def test_tasks_of_submitit_give_the_weights_of_one_process(alone, tmp_path):
    pytest.importorskip("submitit")
    weights, script = alone
    (tmp_path / "submits.py").write_text(SUBMITS)
    run(tmp_path, "submits.py", script)
    require_equal_bits(tmp_path / "weights.pt", weights)


def test_ray_restarts_a_killed_worker_and_the_weights_are_those_of_one_process(tmp_path):
    pytest.importorskip("ray")
    example = (EXAMPLES / "15_ray.py").read_text()
    killed = example.replace("def train(", KILLED).replace(
        "progress=False", "progress=False, callbacks=[Killed()]"
    )
    (tmp_path / "killed.py").write_text(killed)
    run(tmp_path, "killed.py", str(tmp_path / "shared"))
    assert (tmp_path / "shared/killed").exists()
    # Ray keeps the checkpoint of each epoch.
    reported = list(tmp_path.glob("shared/*/checkpoint_*/manifest.json"))
    assert len(reported) == 3
    alone = example.replace("def train(", "ray.train.report = print\n\n\ndef train(")
    ...

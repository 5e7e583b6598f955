"""Launchers of clusters start trainings of two stages, to the weights of one process.

`pip install submitit accelerate` brings them; ray is in test_examples.py, and SLURM with
torchrun between machines in test_two_machines.py.
"""

import pytest

from end_to_end.namespaces import run_python
from end_to_end.test_two_machines import require_equal_bits, write_script

pytestmark = pytest.mark.longer

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


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the weights of the script in one process, and the script."""
    folder = tmp_path_factory.mktemp("alone")
    script = write_script(folder)
    run_python(script, "weights.pt", folder=folder)
    return folder / "weights.pt", script


@pytest.mark.parametrize("launcher", COMMANDS)
def test_a_launcher_of_scripts_gives_the_weights_of_one_process(launcher, alone, tmp_path):
    pytest.importorskip(launcher)
    weights, script = alone
    run_python("-m", *COMMANDS[launcher], script, "weights.pt", folder=tmp_path)
    require_equal_bits(tmp_path / "weights.pt", weights)


def test_tasks_of_submitit_give_the_weights_of_one_process(alone, tmp_path):
    pytest.importorskip("submitit")
    weights, script = alone
    (tmp_path / "submits.py").write_text(SUBMITS)
    run_python("submits.py", script, folder=tmp_path)
    require_equal_bits(tmp_path / "weights.pt", weights)

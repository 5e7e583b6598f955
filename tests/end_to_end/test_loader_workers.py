"""Workers of a loader run in launched processes as under ``python``, and none is left over."""

import multiprocessing
import os

import pytest

from hocket.distributed.launching.launch import launch, run_script
from unit.distributed.launched import NamedPipe

SCRIPT = """
import multiprocessing, os, signal, sys
from pathlib import Path
import torch
from torch import distributed
from torch.utils.data import DataLoader, Dataset

class Squares(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.tensor(index**2)

if __name__ == "__main__":
    pipe, results, killed = sys.argv[1:]
    os.open(pipe, os.O_WRONLY)  # the workers have it as well
    loader = DataLoader(Squares(), batch_size=4, num_workers=2, persistent_workers=True)
    sums = [sum(int(batch.sum()) for batch in loader) for _ in range(2)]
    workers = multiprocessing.active_children()
    row = [sums, len(workers), multiprocessing.get_start_method()]
    Path(results, f"rank{distributed.get_rank()}").write_text(str(row))
    distributed.barrier()
    if distributed.get_rank() == int(killed):
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("killed", "code"), [(-1, 0), (1, 137)])
def test_loaders_with_workers_give_all_samples_and_leave_no_process(tmp_path, killed, code):
    script, pipe = tmp_path / "script.py", NamedPipe(tmp_path)
    script.write_text(SCRIPT)
    words = pipe.name, str(tmp_path), str(killed)
    assert launch(run_script, str(script), words, processes=2, threads=1) == code
    assert pipe.closes_within(100), "a worker outlived its process"
    os.close(pipe.end)
    default, *_ = multiprocessing.get_all_start_methods()
    expected = str([[sum(n**2 for n in range(40))] * 2, 2, default])
    assert [(tmp_path / f"rank{rank}").read_text() for rank in (0, 1)] == [expected] * 2


TRAINING = """
import os, sys
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import hocket

if __name__ == "__main__":
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(16, 4), torch.zeros(16).long())
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    sgd = lambda weights: torch.optim.SGD(weights, lr=0.1)
    with hocket.Trainer(network, stages=2, optimizer=sgd) as trainer:
        loader = DataLoader(data, 4, shuffle=True)
        trainer.fit(loader, loader, epochs=2, progress=False)
    drawn = torch.rand(2).tolist()
    Path(sys.argv[1], f"drawn{os.environ.get('RANK', 0)}").write_text(str(drawn))
"""


def test_a_script_draws_the_same_after_a_training_in_any_number_of_processes(tmp_path):
    """Though only the process that reads data draws their order."""
    script = tmp_path / "training.py"
    script.write_text(TRAINING)
    drawn = {}
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        folder.mkdir()
        words = (str(folder),)
        assert launch(run_script, str(script), words, processes=processes, threads=1) == 0
        drawn[processes] = [file.read_text() for file in sorted(folder.iterdir())]
    assert drawn[2] == drawn[1] * 2

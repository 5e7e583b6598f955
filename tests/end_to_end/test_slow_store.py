"""Processes whose store is slow at their end, as that of a busy machine, end in good order."""

import signal
import subprocess
import sys
import time

import pytest

from end_to_end.namespaces import environment
from hocket.distributed.failures.store_client import STORE_TIMEOUT_S

STORE = """
import time
from torch.distributed import TCPStore

store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
time.sleep(1000)
"""
# Python lets no thread come back from a library once it has begun to end.
SCRIPT = """
import time
import torch, hocket

class LongEnd:
    def __del__(self, sleep=time.sleep):
        sleep(3)

end = LongEnd()
torch.manual_seed(0)
trainer = hocket.Trainer(
    hocket.zoo.mlp(in_features=8, hidden=[16], num_classes=2),
    stages=2,
    method=hocket.FDG(),
    optimizer=lambda weights: torch.optim.SGD(weights, lr=0.1),
)
trainer.fit([(torch.randn(4, 8), torch.tensor([0, 1, 0, 1]))], epochs=1, progress=False)
print("fitted", flush=True)
input()
"""


@pytest.fixture
def start():
    """Function that starts a Python program; all are killed at the end."""
    started = []

    def start(code, **variables):
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env=environment() | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with process:  # closes its pipes
            process.kill()


def test_processes_wait_for_a_store_that_is_slow_at_their_end(start):
    store = start(STORE)
    common = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": store.stdout.readline().strip(),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is in a process of its own
        "OMP_NUM_THREADS": "1",
    }
    processes = [start(SCRIPT, RANK=str(rank), **common) for rank in (0, 1)]
    assert [process.stdout.readline() for process in processes] == ["fitted\n"] * 2
    store.send_signal(signal.SIGSTOP)
    time.sleep(2)  # each process has asked it since
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    time.sleep(STORE_TIMEOUT_S + 1.5)  # to be answered while the interpreters would end
    store.send_signal(signal.SIGCONT)
    assert [process.wait() for process in processes] == [0, 0]

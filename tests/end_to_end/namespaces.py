"""Two machines for a test, or a reason why there are none, and torchrun on both of them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from hocket.bench.nodes import Link, Node, NodesError, two_nodes

SOURCE = Path(__file__).parents[2] / "src"
# What torchrun and the launcher tell their processes must not reach those of a test.
TOLD = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "GLOO_")


@contextmanager
def machines() -> Iterator[Link]:
    """Two machines; a test that asks for them is skipped where they cannot be made."""
    with ExitStack() as stack:
        try:
            link = stack.enter_context(two_nodes())
        except NodesError as error:
            pytest.skip(str(error))
        yield link


@dataclass(frozen=True)
class Ended:
    """What came of a command on one machine."""

    code: int
    out: str
    err: str


def torchrun(
    link: Link,
    folders: Sequence[Path],
    *words: str,
    per_node: int = 1,
    timeout_s: float = 100,
    meanwhile: Callable[[], None] | None = None,
) -> list[Ended]:
    """Start torchrun on both machines, each in a folder of its own; what came of it.

    Args:
        link: The machines.
        folders: Where each works.
        words: What torchrun runs.
        per_node: Processes on each.
        timeout_s: When what still runs is killed.
        meanwhile: Called while they run.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(TOLD)}
    environment = kept | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    started = []
    for number, (node, folder) in enumerate(zip(link.nodes, folders, strict=True)):
        folder.mkdir(exist_ok=True)
        command = node.command(
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--nnodes", "2", "--node-rank", str(number)),
            *("--master-addr", link.nodes[0].address, "--master-port", "29500"),
            *("--nproc-per-node", str(per_node)),
            *words,
        )
        started.append(
            subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
    if meanwhile is not None:
        meanwhile()
    end = time.monotonic() + timeout_s
    return [_ended(*one, end) for one in zip(started, link.nodes, strict=True)]


def _ended(process: subprocess.Popen[str], node: Node, end: float) -> Ended:
    try:
        out, err = process.communicate(timeout=max(0.1, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        # Those that torchrun started would outlive it.
        for number in processes_of(node):
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        out, err = process.communicate()
        err += "\n(killed by the test: it still ran)"
    return Ended(process.returncode, out, err)


def processes_of(node: Node) -> list[int]:
    """The numbers of all processes that are on a machine."""
    network = os.stat(node.namespace).st_ino
    found = []
    for file in Path("/proc").glob("[0-9]*/ns/net"):
        with suppress(OSError):  # it has ended
            if file.stat().st_ino == network:
                found.append(int(file.parts[2]))
    return found

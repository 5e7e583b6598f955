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

from benchmarks.harness.nodes import Node, NodesError, VirtualLink, two_nodes

SOURCE = Path(__file__).parents[2] / "src"
# What torchrun and the launcher tell their processes must not reach those of a test.
TOLD = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "GLOO_")


@contextmanager
def machines() -> Iterator[VirtualLink]:
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


def on_both(
    link: VirtualLink,
    folders: Sequence[Path],
    commands: Sequence[Sequence[str]],
    *,
    timeout_s: float = 200,
    meanwhile: Callable[[], None] | None = None,
) -> list[Ended]:
    """Run a command on each machine; what came of them.

    Args:
        link: The machines.
        folders: Where each works.
        commands: What each runs.
        timeout_s: When what still runs is killed.
        meanwhile: Called while they run.
    """
    started = []
    for node, folder, command in zip(link.nodes, folders, commands, strict=True):
        folder.mkdir(exist_ok=True)
        started.append(
            subprocess.Popen(
                node.command(*command),
                cwd=folder,
                env=environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    if meanwhile is not None:
        meanwhile()
    end = time.monotonic() + timeout_s
    return [_ended(*one, end) for one in zip(started, link.nodes, strict=True)]


def torchrun(link: VirtualLink, number: int, *words: str) -> list[str]:
    """The command that runs these words in a process on each machine."""
    first = link.nodes[0].address
    options = f"--nnodes 2 --node-rank {number} --master-addr {first} --master-port 29500"
    return ["torchrun", *options.split(), "--nproc-per-node", "1", *words]


def environment() -> dict[str, str]:
    """That of a user: with the programs of this Python, and nothing that a launcher sets."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(TOLD)}
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return kept | {"PATH": programs, "PYTHONPATH": str(SOURCE), "COLUMNS": "200"}


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

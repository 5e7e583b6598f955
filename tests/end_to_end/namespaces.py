"""Two machines as network namespaces, and commands on both; skips the test without them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from benchmarks.harness.nodes import Node, NodesError, VirtualLink, two_nodes

SOURCE = Path(__file__).parents[2] / "src"
TIMEOUT_S = 1000
# Variables that torchrun and the launcher set; the processes of a test must not have them.
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_")
LAUNCHER_VARIABLES += ("TORCHELASTIC_", "GLOO_")


@contextmanager
def machines() -> Iterator[VirtualLink]:
    """Context manager for two machines; skips the test if they cannot be made."""
    with ExitStack() as stack:
        try:
            link = stack.enter_context(two_nodes())
        except NodesError as error:
            pytest.skip(str(error))
        yield link


def run_on_both(
    link: VirtualLink,
    folders: Sequence[Path],
    commands: Sequence[Sequence[str]],
    *,
    meanwhile: Callable[[], None] | None = None,
) -> list[subprocess.CompletedProcess[str]]:
    """Run a command in a folder on each machine, and return their results.

    Commands that still run after the time-out are killed; `meanwhile` is called while they run.
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
    end = time.monotonic() + TIMEOUT_S
    return [_wait(*pair, end) for pair in zip(started, link.nodes, strict=True)]


def torchrun(link: VirtualLink, number: int, *words: str) -> list[str]:
    """Return the torchrun command of one machine, 0 or 1, with a process on each."""
    first = link.nodes[0].address
    options = f"--nnodes 2 --node-rank {number} --master-addr {first} --master-port 29500"
    return ["torchrun", *options.split(), "--nproc-per-node", "1", *words]


def run_python(*words: str | Path, folder: Path, **variables: str) -> str:
    """Run Python with these words in a folder, as a user does; return its standard output."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment() | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def environment() -> dict[str, str]:
    """Return the environment of a user: programs of this Python, no variable of a launcher."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHER_VARIABLES)}
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return kept | {"PATH": programs, "PYTHONPATH": str(SOURCE), "COLUMNS": "200"}


def _wait(
    process: subprocess.Popen[str], node: Node, end: float
) -> subprocess.CompletedProcess[str]:
    try:
        out, err = process.communicate(timeout=max(0.1, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        # The processes that torchrun started would outlive it.
        for number in processes_of(node):
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        out, err = process.communicate()
        err += "\n(killed by the test: it still ran)"
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def processes_of(node: Node) -> list[int]:
    """Return the numbers of all processes on a machine."""
    network = os.stat(node.namespace).st_ino
    pids = []
    for file in Path("/proc").glob("[0-9]*/ns/net"):
        with suppress(OSError):  # it has ended
            if file.stat().st_ino == network:
                pids.append(int(file.parts[2]))
    return pids

"""Two nodes in one machine: network namespaces, joined by a link whose rate is chosen.

A namespace has its own interfaces, addresses and ports, so that processes in two of them reach
each other as those of two machines do. These have no names: they are held by open files of
this process, and the system takes them away, with the link, when it ends in whatever way.
"""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread

from hocket.errors import HocketError

INTERFACE = "hocket0"
ADDRESSES = ("10.77.0.1", "10.77.0.2")
TOOLS = ("ip", "tc", "nsenter")
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET


class NodesError(HocketError, OSError):
    """This machine cannot be made to look like two."""


@dataclass(frozen=True)
class Node:
    """One of them, for as long as the process that made it lives.

    Attributes:
        namespace: The file that stands for its network.
        address: Its own, on the link.
        interface: Its end of the link.
    """

    namespace: str
    address: str
    interface: str = INTERFACE

    def enter(self) -> None:
        """Move this thread there, and with it all threads that it starts from now on.

        Raises:
            NodesError: The system does not let it.
        """
        file = os.open(self.namespace, os.O_RDONLY)
        try:
            _system("setns", file, _NEW_NETWORK)
        finally:
            os.close(file)

    def command(self, *words: str) -> list[str]:
        """What to run so that these words are run there."""
        return ["nsenter", f"--net={self.namespace}", *words]


@dataclass(frozen=True)
class VirtualLink:
    """Two nodes and what joins them."""

    nodes: tuple[Node, Node]

    def limit(self, mbit_s: float) -> None:
        """Let this much through from now on, each way.

        Raises:
            NodesError: The kernel has no token bucket.
        """
        # What may go at once: a millisecond's worth, and no less than a few packets.
        burst = max(16_000, round(mbit_s * 125))
        words = f"root tbf rate {mbit_s}mbit burst {burst} latency 100ms".split()
        for node in self.nodes:
            _run(*node.command("tc", "qdisc", "replace", "dev", node.interface, *words))


@contextmanager
def two_nodes() -> Iterator[VirtualLink]:
    """Two nodes with a link of no limit between them, until the end of the block.

    Raises:
        NodesError: The system, the rights or the tools of this process do not allow it.
    """
    _require()
    files = []
    try:
        for _ in ADDRESSES:
            files.append(_in_own_thread(_new_network))
        one, two = (
            Node(f"/proc/{os.getpid()}/fd/{file}", address)
            for file, address in zip(files, ADDRESSES, strict=True)
        )
        _run("ip", "link", "add", INTERFACE, "netns", one.namespace, "type", "veth",
             "peer", "name", INTERFACE, "netns", two.namespace)  # fmt: skip
        for node in (one, two):
            for words in (
                f"addr add {node.address}/30 dev {node.interface}",
                f"link set {node.interface} up",
                "link set lo up",
            ):
                _run(*node.command("ip", *words.split()))
        yield VirtualLink((one, two))
    finally:
        for file in files:
            os.close(file)


def _require() -> None:
    """Refuse what is known not to work."""
    problems = []
    if sys.platform != "linux":
        problems.append(f"network namespaces need Linux, and this is {sys.platform}")
    elif os.geteuid() != 0:
        problems.append("network namespaces need root; run it as root or with sudo")
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        problems.append(
            f"there is no {' and no '.join(missing)}; install iproute2 and util-linux"
        )
    if problems:
        raise NodesError(f"cannot make two nodes here: {'; '.join(problems)}")


def _new_network() -> int:
    """A new namespace, which this thread is in; the open file that keeps it alive."""
    _system("unshare", _NEW_NETWORK)
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY)


def _in_own_thread(work: Callable[[], int]) -> int:
    """What it gives, called in a thread that ends with it."""
    given: list[int] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            given.append(work())
        except Exception as error:
            errors.append(error)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return given[0]


def _system(call: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, call)(*arguments):
        reason = os.strerror(ctypes.get_errno())
        raise NodesError(
            f"cannot make two nodes here: {call} gives {reason!r}; the process needs the "
            "right CAP_SYS_ADMIN, which containers often withhold"
        )


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip() or f"it ended with {done.returncode}"
        raise NodesError(f"cannot make two nodes here: `{' '.join(words)}`: {reason}")

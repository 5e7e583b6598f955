"""Two nodes in one machine: network namespaces, joined by a link of a given rate.

A namespace has its own interfaces, addresses and ports, so that processes in two of them
communicate as on two machines. The namespaces have no names: open files of this process keep
them alive, so that the system removes them, with the link, however the process ends.
"""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hocket.errors import HocketError

INTERFACE = "hocket0"
"""Name of both ends of the link, each in its node."""
ADDRESSES = ("10.77.0.1", "10.77.0.2")
ETHERNET_MTU = 1500
"""Bytes of a packet of Ethernet."""
TOOLS = ("ip", "tc", "nsenter")
COUNTS = Path("/proc/self/net/dev")
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET

Result = TypeVar("Result")


class NodesError(HocketError, OSError):
    """This machine cannot provide two network namespaces."""


@dataclass(frozen=True)
class Node:
    """One node, which exists as long as the process that created it.

    Attributes:
        namespace: The file of its network namespace.
        address: Its IP address on the link.
    """

    namespace: str
    address: str

    def enter(self) -> None:
        """Move this thread into the node, and all threads that it starts from now on.

        Raises:
            NodesError: The system does not allow it.
        """
        file = os.open(self.namespace, os.O_RDONLY)
        try:
            _call_libc("setns", file, _NEW_NETWORK)
        finally:
            os.close(file)

    def command(self, *words: str) -> list[str]:
        """Return the command that runs these words in the node."""
        return ["nsenter", f"--net={self.namespace}", *words]

    def call(self, function: Callable[[], Result]) -> Result:
        """Return the result of a function that a new thread calls in the node.

        A socket that it makes stays in the node.

        Raises:
            NodesError: The system does not allow it.
        """

        def enter_and_call() -> Result:
            self.enter()
            return function()

        return run_in_thread(enter_and_call)

    def set_up(self, *, network_bits: int, mtu: int) -> None:
        """Give the node its address on the link, with packets of ``mtu`` bytes, and loopback.

        Raises:
            NodesError: The system does not allow it.
        """
        for words in (
            f"addr add {self.address}/{network_bits} dev {INTERFACE}",
            f"link set {INTERFACE} mtu {mtu} up",
            "link set lo up",
        ):
            run_command(*self.command("ip", *words.split()))


@dataclass(frozen=True)
class VirtualLink:
    """Two nodes and the link between them."""

    nodes: tuple[Node, Node]

    def limit(self, mbit_s: float) -> None:
        """Limit the rate of each direction, in Mbit/s.

        Raises:
            NodesError: The kernel has no token bucket filter.
        """
        # Bytes sent at once: as many as in a millisecond, and at least a few packets.
        burst = max(16_000, round(mbit_s * 125))
        words = f"root tbf rate {mbit_s}mbit burst {burst} latency 100ms".split()
        for node in self.nodes:
            run_command(*node.command("tc", "qdisc", "replace", "dev", INTERFACE, *words))


@contextmanager
def two_nodes() -> Iterator[VirtualLink]:
    """Context manager that creates two nodes with an unlimited link, and removes them.

    Raises:
        NodesError: The system, or the permissions or tools of this process, do not allow it.
    """
    check_requirements()
    files = []
    try:
        for _ in ADDRESSES:
            files.append(run_in_thread(create_namespace))
        one, two = (
            Node(f"/proc/{os.getpid()}/fd/{file}", address)
            for file, address in zip(files, ADDRESSES, strict=True)
        )
        run_command("ip", "link", "add", INTERFACE, "netns", one.namespace, "type", "veth",
             "peer", "name", INTERFACE, "netns", two.namespace)  # fmt: skip
        for node in (one, two):
            node.set_up(network_bits=30, mtu=ETHERNET_MTU)
        yield VirtualLink((one, two))
    finally:
        for file in files:
            os.close(file)


def read_sent_bytes() -> int:
    """Return the bytes that this node has sent over its link, with all headers; 0 without one.

    A process of the machine itself has no such interface.
    """
    if not COUNTS.is_file():
        return 0
    for line in COUNTS.read_text(encoding="ascii").splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == INTERFACE:
            return int(counts.split()[8])
    return 0


def check_requirements() -> None:
    """Refuse systems without namespaces, permissions or tools, with all reasons.

    Raises:
        NodesError: The system lacks something that two nodes need.
    """
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


def create_namespace() -> int:
    """Move this thread into a new namespace, and return the open file that keeps it alive."""
    _call_libc("unshare", _NEW_NETWORK)
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY)


def run_in_thread(function: Callable[[], Result]) -> Result:
    """Return the result of a function that is called in a new thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def _call_libc(call: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, call)(*arguments):
        reason = os.strerror(ctypes.get_errno())
        raise NodesError(
            f"cannot make two nodes here: {call} gives {reason!r}; the process needs the "
            "capability CAP_SYS_ADMIN, which containers often withhold"
        )


def run_command(*words: str) -> None:
    """Run a command of the system.

    Raises:
        NodesError: It failed.
    """
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip() or f"it ended with {done.returncode}"
        raise NodesError(f"cannot make two nodes here: `{' '.join(words)}`: {reason}")

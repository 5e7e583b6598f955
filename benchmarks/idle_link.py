"""Time of a message after a pause: TCP starts slowly again if a connection was idle.

Stages send a message in each tick and compute in between. Linux shrinks the window of a
connection that was idle for longer than its retransmission time-out, 0.2 s and a round trip,
unless ``tcp_slow_start_after_idle`` is 0.
"""

import socket
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median

from cyclopts import Parameter

from benchmarks.harness.nodes import ETHERNET_MTU, INTERFACE, Node, run_command
from benchmarks.harness.record import Record
from benchmarks.harness.relay import relayed_nodes
from benchmarks.harness.settings import check_settings
from hocket.partition.costs.link import Link

MIB = 2**20
TIMEOUT_S = 60
"""Longest time of a message, and wait for a part of it."""
SWITCH = "/proc/sys/net/ipv4/tcp_slow_start_after_idle"


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class IdleLinkSettings:
    """Settings of the measurement of messages after pauses.

    Attributes:
        out: Folder of the record.
        link: The link, as for `hocket plan`.
        mib: Sizes of messages in MiB.
        pauses: Seconds between messages, as stages compute them.
        rounds: Rounds in which slow start has a turn, and then its absence.
        messages: Timed messages of a turn.
        congestion: TCP's congestion control; Linux has cubic unless told otherwise.

    Raises:
        OptionError: A setting is out of range.
    """

    out: Path = Path("records/idle-link")
    link: str = "100Mbit,20ms"
    mib: Sequence[float] = (0.4, 1.5, 6)
    pauses: Sequence[float] = (0.1, 1)
    rounds: int = 3
    messages: int = 3
    congestion: str = "cubic"

    def __post_init__(self) -> None:
        Link.parse(self.link)
        check_settings(
            "cannot measure messages after pauses",
            self,
            at_least={1: ("rounds", "messages")},
            not_empty=("mib", "pauses"),
            problems=[
                f"{name} has {number}; give numbers above 0"
                for name in ("mib", "pauses")
                for number in getattr(self, name)
                if not number > 0
            ],
        )


DEFAULTS = IdleLinkSettings()


def measure_idle_link(settings: IdleLinkSettings = DEFAULTS) -> None:
    """Time messages with and without slow start after a pause; needs root.

    Raises:
        NodesError: This machine cannot provide two network namespaces.
        OSError: The system lacks this congestion control.
    """
    record = Record.from_settings("idle-link", settings)
    link = Link.parse(settings.link)
    rows = []
    with relayed_nodes(link) as nodes:
        # The relay's own packets are so large that windows are too.
        for node in nodes:
            words = f"link set {INTERFACE} mtu {ETHERNET_MTU}".split()
            run_command(*node.command("ip", *words))
        with connected(nodes, settings.congestion) as (sender, receiver):
            for mib, pause_s in product(settings.mib, settings.pauses):
                nbytes = round(mib * MIB)
                times: dict[bool, list[float]] = {True: [], False: []}
                for _, slow_start in product(range(settings.rounds), times):
                    set_slow_start(nodes, slow_start)
                    count = 1 + settings.messages
                    timed = time_messages(sender, receiver, nbytes, pause_s, count)
                    # The first one may find the window of the other setting.
                    times[slow_start] += timed[1:]
                for slow_start, taken in times.items():
                    row = {"mib": mib, "pause_s": pause_s, "slow_start": slow_start}
                    row |= {"median_s": median(taken), "min_s": min(taken), "max_s": max(taken)}
                    rows.append(row | {"least_s": link.seconds(nbytes)})
                    print(rows[-1], file=sys.stderr, flush=True)
    record.with_rows(rows).write(settings.out)


@contextmanager
def connected(
    nodes: Sequence[Node], congestion: str
) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Context manager of a connection between two nodes: the socket that sends, and the other.

    Args:
        nodes: The node that receives, and the one that sends.
        congestion: TCP's congestion control.
    """
    address = nodes[0].address, 29500
    with (
        nodes[0].call(lambda: socket.create_server(address)) as server,
        nodes[1].call(socket.socket) as sender,
    ):
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sender.connect(address)
        receiver, _ = server.accept()
        with receiver:
            sender.settimeout(TIMEOUT_S)  # else its thread would outlast that of the receiver
            receiver.settimeout(TIMEOUT_S)
            yield sender, receiver


def set_slow_start(nodes: Sequence[Node], on: bool) -> None:
    """Let windows shrink after a pause in these nodes, as Linux does as installed, or not."""
    for node in nodes:
        run_command(*node.command("sh", "-c", f"echo {on:d} > {SWITCH}"))


def time_messages(
    sender: socket.socket, receiver: socket.socket, nbytes: int, pause_s: float, count: int
) -> list[float]:
    """Return the seconds of each message, from its first byte's send to its last one's arrival.

    Args:
        sender: Sends the messages.
        receiver: Receives them.
        nbytes: Size of a message.
        pause_s: Seconds between the arrival of a message and the next send.
        count: Number of messages.
    """
    message, buffer = bytes(nbytes), bytearray(MIB)
    times = []
    with ThreadPoolExecutor(1) as pool:
        for _ in range(count):
            time.sleep(pause_s)
            begin_s = time.perf_counter()
            sent = pool.submit(sender.sendall, message)
            left = nbytes
            while left:
                left -= receiver.recv_into(buffer, min(left, len(buffer)))
            times.append(time.perf_counter() - begin_s)
            sent.result()
    return times

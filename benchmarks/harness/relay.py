"""Nodes in one machine whose packets are delayed: a link with latency and a rate.

Each node is a network namespace with a TUN device, whose other end is held by this process. A
thread reads the IP packets of all nodes and writes each to its node when its time has come. So
a link has latency where the kernel has no network emulator (``tc netem``).
"""

import fcntl
import heapq
import os
import select
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from threading import Thread

from benchmarks.harness.nodes import (
    INTERFACE,
    Node,
    NodesError,
    check_requirements,
    create_namespace,
    run_command,
    run_in_thread,
)
from hocket.partition.costs.link import Link

DEVICE = "/dev/net/tun"
_TUNSETIFF = 0x400454CA
_TUN_WITHOUT_HEADER = 0x0001 | 0x1000  # IFF_TUN | IFF_NO_PI
_MTU = 65_000
# Least, first and largest size. A first one that is smaller than a packet costs round trips.
_BUFFER_BYTES = "4096 4194304 16777216"
_DESTINATION = slice(16, 20)  # in an IPv4 header


@contextmanager
def relayed_nodes(link: Link) -> Iterator[Sequence[Node]]:
    """Context manager that creates two nodes with a link between them, and removes them.

    Raises:
        NodesError: The system, or the permissions or tools of this process, do not allow it.
    """
    check_requirements()
    files: list[int] = []
    devices: dict[bytes, int] = {}
    nodes = []
    stop, stopped = os.pipe()
    files += [stop, stopped]
    try:
        # Create the nodes, each with its device and address.
        for number in (1, 2):
            files.append(run_in_thread(create_namespace))
            address = bytes((10, 77, 1, number))
            node = Node(f"/proc/{os.getpid()}/fd/{files[-1]}", ".".join(map(str, address)))
            files.append(node.call(_open_device))
            devices[address] = files[-1]
            node.set_up(network_bits=24, mtu=_MTU)
            for name in ("tcp_rmem", "tcp_wmem"):
                setting = f"echo {_BUFFER_BYTES} > /proc/sys/net/ipv4/{name}"
                run_command(*node.command("sh", "-c", setting))
            nodes.append(node)

        # Hand over packets until the context ends.
        thread = Thread(target=_relay, args=(devices, link, stop), daemon=True)
        thread.start()
        try:
            yield nodes
        finally:
            os.write(stopped, b"x")
            thread.join()
    finally:
        for file in files:
            os.close(file)


def _relay(devices: Mapping[bytes, int], link: Link, stop: int) -> None:
    """Hand packets from node to node until something can be read from the file ``stop``.

    ``devices`` has the file of each node's TUN device, by the address of the node.
    """
    waiting: list[tuple[float, int, int, bytes]] = []  # time, order, device, packet
    free_s: dict[tuple[int, int], float] = {}  # of each direction
    order = count()
    while True:
        now_s = time.perf_counter()
        while waiting and waiting[0][0] <= now_s:
            _, _, device, packet = heapq.heappop(waiting)
            os.write(device, packet)
        rest_s = waiting[0][0] - now_s if waiting else None
        readable, _, _ = select.select([stop, *devices.values()], [], [], rest_s)
        if stop in readable:
            return
        now_s = time.perf_counter()
        for source in readable:
            packet = os.read(source, _MTU)
            target = devices.get(packet[_DESTINATION])
            if target is None:  # multicast, or IPv6
                continue
            begin_s = max(now_s, free_s.get((source, target), 0.0))
            free_s[source, target] = end_s = begin_s + len(packet) / link.bytes_per_s
            heapq.heappush(waiting, (end_s + link.latency_s, next(order), target, packet))


def _open_device() -> int:
    """Return the file of a new TUN device in the node of this thread.

    Raises:
        NodesError: The system does not allow it.
    """
    try:
        file = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK)
    except OSError as error:
        raise NodesError(
            f"cannot delay packets here: {DEVICE} gives {error.strerror!r}; load the kernel "
            "module tun, and run it as root"
        ) from error
    fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH", INTERFACE.encode(), _TUN_WITHOUT_HEADER))
    return file

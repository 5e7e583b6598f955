"""Two nodes are connected by their link only, and leave nothing behind."""

import os
import shutil
import socket
import time
from threading import Thread

import pytest

from benchmarks.harness.nodes import NodesError, two_nodes
from end_to_end.namespaces import machines


@pytest.fixture
def link():
    with machines() as link:
        yield link


def on(node, work):
    """Start a thread of this process in a node."""

    def enter_and_work():
        node.enter()
        work()

    thread = Thread(target=enter_and_work)
    thread.start()
    return thread


def seconds_for(link, size):
    """Return the seconds for these bytes from one node to the other."""
    one, two = link.nodes
    ready: list[socket.socket] = []
    took: list[float] = []

    def listen():
        ready.append(socket.create_server((one.address, 29500)))

    def receive():
        connection, _ = ready[0].accept()
        with ready[0], connection:
            left = size
            while left:
                left -= len(connection.recv(65536))
            took.append(time.perf_counter() - start)

    def send():
        with socket.create_connection((one.address, 29500), timeout=5) as connection:
            connection.sendall(bytes(size))

    on(one, listen).join()
    start = time.perf_counter()
    threads = [on(one, receive), on(two, send)]
    for thread in threads:
        thread.join()
    return took[0]


def test_a_link_lets_through_what_it_is_told(link):
    megabit = 125_000
    link.limit(10)
    slow_s = seconds_for(link, 4 * megabit)
    assert slow_s > 0.3
    link.limit(1000)
    assert seconds_for(link, 4 * megabit) < slow_s


def test_a_node_sees_its_own_end_of_the_link_and_loopback_only(link):
    seen: list[set[str]] = []
    node = link.nodes[0]
    on(node, lambda: seen.append({name for _, name in socket.if_nameindex()})).join()
    assert {"lo", node.interface} <= seen[0]
    assert not {"eth0", "wlan0"} & seen[0]
    assert node.interface not in {name for _, name in socket.if_nameindex()}


def test_nothing_is_left_of_them(link):
    before = len(os.listdir("/proc/self/fd"))
    with two_nodes() as other:
        assert len(os.listdir("/proc/self/fd")) == before + 2
        assert os.stat(other.nodes[0].namespace).st_ino
    assert len(os.listdir("/proc/self/fd")) == before


def test_all_that_is_missing_is_told_at_once(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool != "ip" else "/sbin/ip")
    with pytest.raises(NodesError, match=r"(?s)need root; .*no tc and no nsenter; install"):
        two_nodes().__enter__()


def test_rights_that_are_withheld_are_named(monkeypatch):
    class Libc:
        def unshare(self, _):
            return -1

    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: Libc())
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: f"/sbin/{tool}")
    monkeypatch.setattr("sys.platform", "linux")
    with pytest.raises(NodesError, match=r"unshare gives .*CAP_SYS_ADMIN, which containers"):
        two_nodes().__enter__()

"""No stranger takes a place in a process group, or connects later; interfaces that are used."""

import contextlib
import os
import re
import socket
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Event

import pytest
import torch
from torch.distributed import HashStore
from torch.distributed.distributed_c10d import PrefixStore, ProcessGroupGloo

from hocket.distributed.network import network_interface
from hocket.distributed.network.sockets import own_sockets
from hocket.distributed.network.strangers import form_without_strangers
from hocket.errors import HangError, PeerLostError, WorldError

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/net/tcp").exists(), reason="the system lists no sockets"
)
LIMIT_S = 60.0
HERE = ("127.0.0.1", 0)
# Connects eight times, and sends the numbers of the pairs for which gloo may be waiting.
STRANGER = """
import socket, struct, sys
connections = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(8)]
for number, connection in enumerate(connections if sys.argv[2] == "sends" else ()):
    connection.sendall(struct.pack("q", number))
print("connected", flush=True)
sys.stdin.read()
"""
# Connects, as another user, from a port that is in use already to the next one, and sends.
SAME_PORT = """
import os, socket, struct, sys
user, own, other, says_more = map(int, sys.argv[1:])
os.setuid(user)
with socket.socket() as connection:
    try:
        IP_LOCAL_PORT_RANGE = 51
        ports = struct.pack("I", own << 16 | own)
        connection.setsockopt(socket.SOL_IP, IP_LOCAL_PORT_RANGE, ports)
    except OSError:
        print("unknown", flush=True)
    else:
        connection.connect(("127.0.0.1", other))
        connection.sendall(struct.pack("q", 0))
        if not says_more:
            connection.shutdown(socket.SHUT_WR)
        print("connected", flush=True)
    sys.stdin.read()
"""


def listening_ports():
    return {int(each.local_port, 16) for each in own_sockets() if each.listening}


@contextlib.contextmanager
def stranger(*arguments, program=STRANGER):
    """A process of its own, since the sockets of this one belong to the training."""
    command = [sys.executable, "-S", "-c", program, *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        if (said := process.stdout.readline()) == "unknown\n":
            pytest.skip("the kernel has no IP_LOCAL_PORT_RANGE")
        assert said == "connected\n"
        yield
        process.communicate()


@pytest.fixture
def form_two(monkeypatch):
    """A function that forms a group of two in two threads, with a stranger."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")

    def form_two(stranger_at):
        store, stranger_is_there = HashStore(), Event()
        before = listening_ports()

        def join(rank):
            def form():
                if rank == 1:
                    stranger_is_there.wait(LIMIT_S)
                pairs = PrefixStore("pairs", store)
                return ProcessGroupGloo(pairs, rank, 2, timedelta(seconds=LIMIT_S))

            door = PrefixStore("door", store)
            return form_without_strangers(form, door, rank=rank, size=2, timeout_s=LIMIT_S)

        with ThreadPoolExecutor(2) as pool:
            joined = [pool.submit(join, rank) for rank in range(2)]
            while not (ports := listening_ports() - before):
                time.sleep(0.01)
            with stranger_at(port := ports.pop()):
                stranger_is_there.set()
                return port, [each.exception() or each.result() for each in joined]

    return form_two


def sum_of_ones(groups):
    ones = [torch.ones(1) for _ in groups]
    works = [group.allreduce([each]) for group, each in zip(groups, ones, strict=True)]
    for work in works:
        work.wait()
    return [each.item() for each in ones]


def test_a_stranger_who_sends_numbers_of_pairs_is_told_to_all(form_two):
    port, errors = form_two(lambda port: stranger(port, "sends"))
    for error in errors:
        assert isinstance(error, PeerLostError)
        assert re.search(rf"sent data .*: 127\.0\.0\.1:\d+ of user {os.getuid()}", str(error))
        assert "the connections are closed; start the training again" in str(error)
    ours = {each.local for each in own_sockets()}
    at_port = [each for each in own_sockets() if int(each.local_port, 16) == port]
    assert not [each for each in at_port if each.connected and each.remote not in ours]


def test_strangers_who_send_nothing_are_disconnected_and_later_ones_find_no_connection(
    form_two,
):
    port, groups = form_two(lambda port: stranger(port, "connects"))
    with socket.socket() as late:
        late.settimeout(0.5)
        with pytest.raises(TimeoutError):
            late.connect(("127.0.0.1", port))
    assert sum_of_ones(groups) == [2.0, 2.0]


def test_a_process_that_does_not_form_its_group_is_named():
    with pytest.raises(HangError, match=r"process 1 of 2 did not connect to the others within"):
        form_without_strangers(lambda: None, HashStore(), rank=0, size=2, timeout_s=0.01)


@pytest.mark.parametrize("says_more", [0, 1])
def test_a_stranger_on_the_port_of_a_process_is_told_with_his_own_user(says_more):
    user = os.getuid() or 65534

    def form():
        taken, other = (stack.enter_context(socket.create_server(HERE)) for _ in range(2))
        member = stack.enter_context(socket.create_connection(taken.getsockname()))
        ports = [each.getsockname()[1] for each in (member, other)]
        stack.enter_context(stranger(user, *ports, says_more, program=SAME_PORT))
        connections.extend(stack.enter_context(each.accept()[0]) for each in (taken, other))

    connections = []
    with contextlib.ExitStack() as stack:
        with pytest.raises(PeerLostError, match=rf"data to their ports: \S+ of user {user};"):
            form_without_strangers(form, HashStore(), rank=0, size=1, timeout_s=LIMIT_S)
        members, strangers = connections
        assert strangers.recv(16) == struct.pack("q", 0)
        assert strangers.recv(16) == b""
        members.sendall(b"still connected")


# Processes use loopback on one machine, and an interface that all reach on several.

ONE_MACHINE = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
TWO_MACHINES = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}


@pytest.fixture
def machine_address():
    """An address of this machine other than loopback, and its interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            address = network_interface._address(probe, name)
            if address is not None and not address.startswith("127."):
                return address, name
    pytest.skip("this machine has no network")


def test_an_address_of_this_machine_is_reached_over_its_interface(machine_address):
    address, name = machine_address
    assert network_interface.interface_towards(address) == name
    loopback = network_interface.loopback_interface()
    assert network_interface.interface_towards("127.0.0.1") == loopback
    assert network_interface.interface_towards("no.such.host.invalid") is None


def test_machines_talk_over_the_interface_to_the_first_and_one_alone_over_loopback(
    machine_address,
):
    address, name = machine_address
    loopback = network_interface.loopback_interface()
    for variables, found in (
        (TWO_MACHINES | {"MASTER_ADDR": address}, name),
        (ONE_MACHINE | {"MASTER_ADDR": address}, loopback),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}, loopback),
        # Without a rendezvous address, or others, gloo chooses.
        ({"WORLD_SIZE": "2"}, None),
        ({"MASTER_ADDR": "127.0.0.1"}, None),
    ):
        assert network_interface.find_interface(variables) == found


def test_an_address_that_others_cannot_reach_is_refused_unless_the_user_has_chosen():
    variables = TWO_MACHINES | {"MASTER_ADDR": "127.0.1.1"}
    with pytest.raises(WorldError, match=r"at '127\.0\.1\.1' \(MASTER_ADDR\).*give torchrun"):
        network_interface.find_interface(variables)
    chosen = variables | {"GLOO_SOCKET_IFNAME": "eth7"}
    assert network_interface.find_interface(chosen) == "eth7"

"""Processes use loopback on one machine, and an interface that all reach on several."""

import socket
import sys

import pytest

from hocket.distributed.network import network_interface
from hocket.errors import WorldError

ONE_MACHINE = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
TWO_MACHINES = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells interfaces")


@pytest.fixture
def machine_address():
    """An address of this machine other than loopback, and its interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            address = network_interface._address(probe, name)
            if address is not None and not address.startswith("127."):
                return address, name
    pytest.skip("this machine has no network")


@linux
def test_an_address_of_this_machine_is_reached_over_its_interface(machine_address):
    address, name = machine_address
    assert network_interface.interface_towards(address) == name
    loopback = network_interface.loopback_interface()
    assert network_interface.interface_towards("127.0.0.1") == loopback
    assert network_interface.interface_towards("no.such.host.invalid") is None


@linux
def test_machines_talk_over_the_interface_to_the_first_and_one_alone_over_loopback(
    machine_address,
):
    address, name = machine_address
    loopback = network_interface.loopback_interface()
    for variables, found in (
        (TWO_MACHINES | {"MASTER_ADDR": address}, name),
        (ONE_MACHINE | {"MASTER_ADDR": address}, loopback),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}, loopback),
    ):
        assert network_interface.find_interface(variables) == found


def test_without_a_rendezvous_address_gloo_chooses():
    assert network_interface.find_interface({"WORLD_SIZE": "2"}) is None
    assert network_interface.find_interface({"MASTER_ADDR": "127.0.0.1"}) is None


@linux
def test_an_address_that_others_cannot_reach_is_refused_unless_the_user_has_chosen():
    variables = TWO_MACHINES | {"MASTER_ADDR": "127.0.1.1"}
    with pytest.raises(WorldError, match=r"at '127\.0\.1\.1' \(MASTER_ADDR\).*give torchrun"):
        network_interface.find_interface(variables)
    chosen = variables | {"GLOO_SOCKET_IFNAME": "eth7"}
    assert network_interface.find_interface(chosen) == "eth7"

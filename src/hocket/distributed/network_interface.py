"""Network interfaces: the one that only this machine reaches, and the one towards another."""

import os
import socket
import struct
import sys
from collections.abc import Mapping

from hocket.errors import OptionError, WorldError

CHOICE = "GLOO_SOCKET_IFNAME"
"""The environment variable that tells gloo which interface to use."""

_GET_ADDRESS = 0x8915  # SIOCGIFADDR


def choose_interface() -> None:
    """Have gloo use the interface that this training needs, unless the user has chosen one.

    Left alone, gloo takes the address of this machine's own name, which on many machines is
    one that no other machine reaches.

    Raises:
        WorldError: The other machines could not reach the address where all meet.
    """
    if CHOICE not in os.environ and (name := find_interface(os.environ)) is not None:
        os.environ[CHOICE] = name


def find_interface(environment: Mapping[str, str]) -> str | None:
    """The interface for processes that torchrun has started; None where gloo is to choose.

    Raises:
        WorldError: The other machines could not reach the address where all meet.
    """
    host, size = environment.get("MASTER_ADDR"), environment.get("WORLD_SIZE")
    if host is None or size is None:
        return None
    here = environment.get("LOCAL_WORLD_SIZE")
    if here == size:
        return loopback()  # one machine: nobody else needs to reach its processes
    name = interface_towards(host)
    if here is not None and name == loopback():
        raise WorldError(
            f"the processes of all machines are to meet at {host!r} (MASTER_ADDR), which here "
            "is an address that other machines cannot reach; give torchrun --master-addr the "
            f"IP address of the first machine, or set {CHOICE} to the interface to use"
        )
    return name


def loopback() -> str:
    """Name of the network interface that no other machine reaches.

    Raises:
        OptionError: There is none.
    """
    names = [name for _, name in socket.if_nameindex()]
    for name in ("lo", "lo0"):
        if name in names:
            return name
    raise OptionError(
        f"processes talk over the loopback interface, lo or lo0, and there are only "
        f"{', '.join(names) or 'none'}; bring it up with `ip link set lo up`"
    )


def interface_towards(host: str) -> str | None:
    """Name of the interface whose address this machine has for others when it reaches a host.

    None where the system does not tell. Of IPv4 only; nothing is sent.
    """
    if sys.platform != "linux":
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
        except OSError:
            return None
        own = probe.getsockname()[0]
        if own.startswith("127."):
            return loopback()
        return next(
            (name for _, name in socket.if_nameindex() if _address(probe, name) == own), None
        )


def _address(probe: socket.socket, name: str) -> str | None:
    """The IPv4 address of an interface."""
    import fcntl  # not on Windows

    request = struct.pack("256s", name.encode()[:15])
    try:
        found = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, request)
    except OSError:
        return None
    return socket.inet_ntoa(found[20:24])

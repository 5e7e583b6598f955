"""Choice of the network interface: loopback on one machine, else one that others reach."""

import socket
import struct
import sys
from collections.abc import Mapping

from hocket.errors import OptionError, WorldError

INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"
"""The environment variable that tells gloo which interface to use."""

_GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux
_GET_FLAGS = 0x8913  # SIOCGIFFLAGS of Linux
_IS_UP = 1  # IFF_UP


def find_interface(environment: Mapping[str, str]) -> str | None:
    """Return the interface for processes that torchrun has started; None if gloo is to choose.

    By default gloo uses the address of this machine's host name, which on many machines is one
    that no other machine reaches.

    Raises:
        WorldError: The other machines could not reach the address of the rendezvous.
    """
    if INTERFACE_VARIABLE in environment:
        return environment[INTERFACE_VARIABLE]
    host, size = environment.get("MASTER_ADDR"), environment.get("WORLD_SIZE")
    if host is None or size is None:
        return None
    local_size = environment.get("LOCAL_WORLD_SIZE")
    if local_size == size:
        return loopback_interface()  # one machine: no other needs to reach its processes
    name = interface_towards(host)
    if local_size is not None and name == loopback_interface():
        raise WorldError(
            f"the processes of all machines are to meet at {host!r} (MASTER_ADDR), which on "
            "this machine is an address that other machines cannot reach; give torchrun "
            f"--master-addr the IP address of the first machine, or set {INTERFACE_VARIABLE} "
            "to the interface to use"
        )
    return name


def loopback_interface() -> str:
    """Return the name of the loopback interface, which no other machine reaches.

    Raises:
        OptionError: There is none, or it is down.
    """
    names = [name for _, name in socket.if_nameindex()]
    for name in ("lo", "lo0"):
        if name in names:
            if not _is_up(name):
                raise OptionError(
                    f"processes talk over the loopback interface, and {name} is down; bring it "
                    f"up with `ip link set {name} up`"
                )
            return name
    raise OptionError(
        f"processes talk over the loopback interface, lo or lo0, and there are only "
        f"{', '.join(names) or 'none'}; bring it up with `ip link set lo up`"
    )


def interface_towards(host: str) -> str | None:
    """Return the name of the interface over which this machine reaches a host by IPv4.

    None if the system does not tell. Nothing is sent.
    """
    if sys.platform != "linux":
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
        except OSError:
            return None
        address = probe.getsockname()[0]
        if address.startswith("127."):
            return loopback_interface()
        names = (name for _, name in socket.if_nameindex())
        return next((name for name in names if _address(probe, name) == address), None)


def _address(probe: socket.socket, name: str) -> str | None:
    """Return the IPv4 address of an interface; None if it has none."""
    try:
        return socket.inet_ntoa(_ask_kernel(probe, _GET_ADDRESS, name)[4:8])
    except OSError:
        return None


def _is_up(name: str) -> bool:
    """Return True if an interface is up, or if the system does not tell."""
    if sys.platform != "linux":
        return True
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        (flags,) = struct.unpack_from("H", _ask_kernel(probe, _GET_FLAGS, name))
    return bool(flags & _IS_UP)


def _ask_kernel(probe: socket.socket, request: int, name: str) -> bytes:
    """Return the kernel's answer, given to any socket, to a request about an interface.

    Raises:
        OSError: The interface has no such property.
    """
    import fcntl  # not on Windows

    reply = fcntl.ioctl(probe.fileno(), request, struct.pack("256s", name.encode()[:15]))
    return reply[16:]  # after the name

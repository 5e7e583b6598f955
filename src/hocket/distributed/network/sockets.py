"""TCP sockets of this process, as the kernel of Linux lists them; none on other systems."""

import ctypes
import os
import socket
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
_DESCRIPTORS = Path("/proc/self/fd")
_LISTEN = "0A"
_CONNECTED = ("01", "08")
"""Established, and closed at the other end only."""
_SO_ATTACH_FILTER = 26
_RECEIVED_AT = 128
"""Offset of tcpi_bytes_received in the kernel's struct tcp_info."""
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)  # one BPF instruction: return 0 bytes


@dataclass(frozen=True)
class TcpSocket:
    """A TCP socket of this process.

    Attributes:
        local: Address and port at this end, as the kernel writes them.
        remote: Address and port at the other end.
        state: State of the connection, as the kernel writes it.
        queued: Number of bytes that were not read, or of connections that were not accepted.
        inode: Number that no other open socket of the machine has.
    """

    descriptor: int
    local: str
    remote: str
    state: str
    queued: int
    inode: int

    @property
    def listening(self) -> bool:
        """True if the socket waits for connections."""
        return self.state == _LISTEN

    @property
    def local_port(self) -> str:
        """Port at this end, as the kernel writes it."""
        return self.local.rpartition(":")[2]

    @property
    def connected(self) -> bool:
        """True if the socket is one end of a connection."""
        return self.state in _CONNECTED

    def received_bytes(self) -> int:
        """Return the number of bytes that have arrived over a connection."""
        size = _RECEIVED_AT + 8
        with suppress(OSError), self._duplicate() as duplicate:
            information = duplicate.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
            return int.from_bytes(information[_RECEIVED_AT:], sys.byteorder)
        return 0

    def refuse_connections(self) -> None:
        """Let no further connection reach a listening socket; accepted ones stay.

        The socket remains open, as its owner would fail if it found it closed. Where the kernel
        does not support filters, nothing changes.
        """
        instructions = ctypes.create_string_buffer(_DROP_ALL)
        program = struct.pack("HL", 1, ctypes.addressof(instructions))
        with suppress(OSError), self._duplicate() as duplicate:
            duplicate.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)

    def shut_down(self) -> None:
        """End a connection in both directions; its owner finds it closed."""
        with suppress(OSError), self._duplicate() as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)

    def _duplicate(self) -> socket.socket:
        """Return another descriptor of the socket.

        Raises:
            OSError: The socket was closed.
        """
        number = os.dup(self.descriptor)
        # By now it may belong to another socket or file.
        if os.fstat(number).st_ino != self.inode:
            os.close(number)
            raise OSError("the socket was closed")
        return socket.socket(fileno=number)


def own_sockets() -> list[TcpSocket]:
    """Return the TCP sockets that this process has open."""
    descriptors = {}
    with suppress(OSError):
        for link in _DESCRIPTORS.iterdir():
            with suppress(OSError):  # closed meanwhile
                descriptors[os.readlink(link)] = int(link.name)
    sockets = []
    for row in _rows():
        local, remote, state, inode = row[1], row[2], row[3], int(row[9])
        queued = int(row[4].partition(":")[2], 16)
        descriptor = descriptors.get(f"socket:[{inode}]")
        if descriptor is not None:
            sockets.append(TcpSocket(descriptor, local, remote, state, queued, inode))
    return sockets


def owner_of(local: str, remote: str) -> int | None:
    """Return the user id behind one end of a connection; None if it is not on this machine."""
    return next((int(row[7]) for row in _rows() if row[1:3] == [local, remote]), None)


def readable(endpoint: str) -> str:
    """Return an address and port as people write them.

    >>> readable("0100007F:1F90")
    '127.0.0.1:8080'
    """
    address, port = endpoint.split(":")
    words = [bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8)]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return f"{socket.inet_ntop(family, b''.join(words))}:{int(port, 16)}"


def _rows() -> list[list[str]]:
    """Return the kernel's rows of all TCP sockets in this network namespace, as words."""
    rows = []
    for table in _TABLES:
        with suppress(OSError):
            rows += [line.split() for line in table.read_text().splitlines()[1:]]
    return rows

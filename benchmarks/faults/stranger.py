"""Somebody who does not belong to a job, and connects to its ports.

``python stranger.py SENDS PORT...`` is the program; it imports the standard library only.
"""

import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

CONNECT_S = 0.5
"""Seconds in which somebody who is let in is connected."""
STAY_S = 60.0
"""Most seconds for which the stranger keeps its connections."""
NUMBERS = 8
"""Connections to each port, over which the numbers of pairs of processes are sent."""


def send_stranger(ports: Iterable[int], *, sends: bool) -> int:
    """Let another process connect to ports of this machine; return how many connections it has.

    It keeps them until they are closed, and may send data over them.
    """
    program = [sys.executable, "-I", "-S", __file__, "sends" if sends else "scans"]
    # It ends with the group of this process, which is killed with it.
    started = subprocess.Popen(
        [*program, *map(str, ports)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    assert started.stdout is not None
    with started.stdout as told:
        return int(told.readline())


def _main(does: str, *ports: str) -> None:
    attempts = []
    for port in ports:
        for number in range(NUMBERS):
            attempt = socket.socket()
            attempt.setblocking(False)
            with suppress(BlockingIOError):
                attempt.connect(("127.0.0.1", int(port)))
            attempts.append((number, attempt))
    time.sleep(CONNECT_S)
    connected = [(number, each) for number, each in attempts if _is_connected(each)]
    for number, each in connected if does == "sends" else ():
        with suppress(OSError):
            each.sendall(struct.pack("q", number) + os.urandom(number))
    print(len(connected), flush=True)
    end_s = time.monotonic() + STAY_S
    for _, each in connected:
        each.settimeout(max(0.0, end_s - time.monotonic()))
        with suppress(OSError):
            while each.recv(4096):
                pass


def _is_connected(attempt: socket.socket) -> bool:
    try:
        attempt.getpeername()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    _main(*sys.argv[1:])

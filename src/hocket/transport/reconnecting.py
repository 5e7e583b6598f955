"""The way to a neighbour that runs freely, which may be cut and renewed while all are apart.

A thread waits for the end of a connection, and makes the next one once the neighbour has come
back. Until then nothing is sent and nothing comes, and the stage goes on with what it has.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from hocket.distributed.world import World
from hocket.errors import HocketError
from hocket.transport.backends import HostBackend
from hocket.transport.connection import Connection, send_activation
from hocket.transport.packet import Activation

LOOK_S = 0.1
"""How often to look whether a neighbour has come back."""
Connect: TypeAlias = Callable[[Callable[[str], HocketError], HostBackend | None], Connection]
"""Makes a connection, from what names a loss and, but for the first, what carries all of it."""


class _Cut(HocketError):
    """The neighbour was killed, and may come back."""


class ReconnectingLink:
    """The connections to a neighbour, one after the other.

    Args:
        world: This process among the others.
        rank: The neighbour's.
        connect: Makes each of them.

    Attributes:
        connection: The present one; None while the way is cut.
    """

    def __init__(self, world: World, rank: int, connect: Connect) -> None:
        self.rank = rank
        self.place = world.names[rank]
        self.connection = None if world.rejoined else connect(self._gone, None)
        self._world = world
        self._connect = connect
        self._before_bytes = 0  # sent over those that were cut
        self._hopeless = False
        self._failure: HocketError | None = None
        self._thread: threading.Thread | None = None

    @property
    def sent_bytes(self) -> int:
        """What was sent to the neighbour so far."""
        now = self.connection
        return self._before_bytes + (now.sent_bytes if now is not None else 0)

    def send(self, packet: Activation) -> bool:
        """Send an activation if the way is free; whether it was."""
        connection = self.connection
        if connection is None or connection.busy:
            return False
        # Where the way is cut just now, whoever receives the next packet sees that one is lost.
        with suppress(_Cut):
            send_activation(connection, packet, until=0)
        return True

    def open(self) -> None:
        """From here on the neighbour may be killed, and come back where that can be."""
        if self._thread is None or not self._thread.is_alive():
            name = f"hocket-line-{self.rank}"
            self._thread = threading.Thread(target=self._keep, name=name, daemon=True)
            self._thread.start()

    def require_open(self) -> Connection:
        """The connection, where it cannot be done without.

        Raises:
            HocketError: The neighbour is gone and does not come back.
        """
        end = time.monotonic() + self._world.failures.timeout_s
        while self.connection is None:
            self.require_reachable()
            if time.monotonic() >= end:
                raise self._world.failures.peer_timed_out(
                    self.rank, f"{self.place} to come back"
                )
            time.sleep(LOOK_S)
        return self.connection

    def require_reachable(self) -> None:
        """Go on unless the way is cut for good.

        Raises:
            HocketError: The neighbour is gone and does not come back, or what it sent is wrong.
        """
        if self._hopeless:
            # Whoever tells the others of it first is to have its own words for it.
            assert self._thread is not None
            self._thread.join()
            assert self._failure is not None
            raise self._failure

    def close(self) -> None:
        """Part from the neighbour."""
        if self.connection is not None:
            self.connection.close()

    def _gone(self, said: str) -> HocketError:
        """The error to raise when the connection is cut, and said this."""
        hope = self._world.membership.may_rejoin
        return _Cut(said) if hope else self._world.failures.peer_lost(self.rank, said)

    def _keep(self) -> None:
        """Wait for the end of each connection and make the next one, until all meet again."""
        while self._world.membership.detached and not self._hopeless:
            if self.connection is None:
                self._renew()
                continue
            error = self.connection.until_over()
            if error is None or not self._world.membership.detached:
                return
            if isinstance(error, HocketError):  # it is not cut: what came over it is wrong
                self._failure, self._hopeless = error, True
            elif self._world.membership.may_rejoin:
                lost, self.connection = self.connection, None
                self._before_bytes += lost.sent_bytes
                lost.abandon()
            else:
                self._hopeless = True
                self._failure = self._world.failures.peer_lost(self.rank, str(error))

    def _renew(self) -> None:
        """Connect with the process that has come in the neighbour's place, or in this one."""
        begun, alarm, outing = time.monotonic(), self._world.failures, self._world.membership
        while outing.detached:
            group = None
            with suppress(RuntimeError):  # it was killed once more
                group = outing.pair_group(self.rank)
            if group is not None:
                host = HostBackend(self._world, int(self.rank > self._world.rank), group)
                self.connection = self._connect(self._gone, host)
                return
            if not outing.may_rejoin:
                self._hopeless = True
                self._failure = alarm.peer_lost(self.rank, "nobody comes in its place")
                return
            if time.monotonic() - begun >= alarm.timeout_s:
                self._hopeless = True
                self._failure = alarm.peer_timed_out(self.rank, f"{self.place} to come back")
                return
            time.sleep(LOOK_S)

"""Link to the neighbour of a free-running stage, which reconnects when that process restarts.

A thread waits for the end of a connection, and makes the next one once the neighbour is back.
Until then nothing is sent and nothing arrives, and the stage trains with what it has.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

from hocket.distributed.failures.detector import means_loss
from hocket.distributed.world.world import World
from hocket.errors import HangError, WorldError
from hocket.timeline import Recorder
from hocket.transport.packet import Activation
from hocket.transport.port import ForwardOnlyPort
from hocket.transport.processes.backend import Backend
from hocket.transport.processes.backends import HostBackend
from hocket.transport.processes.connection import Connection, ConnectionCutError
from hocket.transport.stats import SendStats

POLL_S = 0.1
"""Seconds between two looks whether a neighbour is back."""
ConnectionFactory: TypeAlias = Callable[[Backend], Connection]


class ReconnectingLink:
    """The connections to a neighbour, one after the other.

    Args:
        rank: Rank of the neighbour.
        connect: Makes each connection.
        first: Backend of the first connection; None if this process was started again alone,
            and connects later.

    Attributes:
        connection: The present connection; None while there is none. Until the link is closed,
            the thread that reconnects may replace it at any time.
    """

    def __init__(
        self, world: World, rank: int, connect: ConnectionFactory, first: Backend | None
    ) -> None:
        self.rank = rank
        self.peer_name = world.names[rank]
        self.connection = connect(first) if first is not None else None
        self._world = world
        self._connect = connect
        self._closed_sent_bytes = 0  # sent over connections that were cut
        self._closing = False
        # Held to replace the connection and to begin to close it, so that each is closed, once.
        self._changing = threading.Lock()
        self._failure: Exception | None = None  # after which nothing reconnects
        self._thread: threading.Thread | None = None

    @property
    def sent_bytes(self) -> int:
        """Number of bytes sent to the neighbour over all connections."""
        connection = self.connection
        present = connection.sent_bytes if connection is not None else 0
        return self._closed_sent_bytes + present

    def send(self, packet: Activation) -> bool:
        """Send an activation unless that would block; return whether it was sent."""
        connection = self.connection
        if connection is None or connection.busy:
            return False
        # If the connection is cut just now, the receiver of the next packet counts a lost one.
        with suppress(ConnectionCutError):
            connection.send_packet(packet)
        return True

    def start_reconnecting(self) -> None:
        """Reconnect from now on whenever the neighbour is killed and started again."""
        if self._thread is None or not self._thread.is_alive():
            name = f"hocket-link-{self.rank}"
            thread = threading.Thread(target=self._reconnect_loop, name=name, daemon=True)
            thread.start()  # first, as another thread that closes the link joins this one
            self._thread = thread

    def wait_connected(self) -> Connection:
        """Wait until there is a connection and return it.

        Raises:
            HocketError: The neighbour is lost and does not come back.
            WorldError: Nothing reconnects before this restarted process calls ``fit``.
        """
        while True:
            # Asked first: the thread that reconnects, and has the time limit, may end just now.
            reconnects = self._thread is not None and self._thread.is_alive()
            if (connection := self.connection) is not None:
                return connection
            self.raise_if_lost()
            if not reconnects:
                raise WorldError(
                    f"{self._world.name} is not connected to {self.peer_name}; after a restart "
                    "of one process call resume and fit first"
                )
            time.sleep(POLL_S)

    def raise_if_lost(self) -> None:
        """Raise the error that ended reconnecting, if any.

        Raises:
            HocketError: The neighbour is lost and does not come back, or has sent an invalid
                packet.
            Exception: Another error in a thread of this link, such as short memory of a GPU.
        """
        if self._failure is not None:
            raise self._failure

    def begin_close(self) -> None:
        """Begin to close the present connection, and make no other one."""
        with self._changing:
            self._closing = True
            if (connection := self.connection) is not None:
                connection.begin_close()

    def finish_close(self, timeout_s: float) -> bool:
        """Wait until the neighbour has closed it, too; return True if nothing is under way."""
        end_s = time.monotonic() + timeout_s
        if self._thread is not None:  # first, as it may be making a connection
            self._thread.join(max(timeout_s, 0))
        connection = self.connection
        return connection is not None and connection.finish_close(end_s - time.monotonic())

    @property
    def _detached(self) -> bool:
        """True while this process waits for a neighbour that is killed to come back."""
        return self._world.membership.detached and not self._closing

    def _reconnect_loop(self) -> None:
        """Wait for the end of each connection and make the next one, until all reunite."""
        try:
            while self._detached:
                if self.connection is None:
                    self._reconnect()
                    continue
                error = self.connection.wait_closed()
                if error is None or not self._detached:
                    return
                if not means_loss(error):  # such as an invalid packet, or short memory
                    raise error
                if not self._world.membership.may_rejoin:
                    raise self._world.failures.peer_lost(self.rank, str(error))
                with self._changing:
                    if self._closing:
                        return
                    cut, self.connection = self.connection, None
                    self._closed_sent_bytes += cut.sent_bytes
                cut.abort()
        except Exception as error:
            self._failure = error

    def _reconnect(self) -> None:
        """Connect once the neighbour, or this process, was started again.

        Raises:
            HocketError: The neighbour does not come back, or a stranger has connected.
        """
        failures, membership = self._world.failures, self._world.membership
        start_s = failures.running_s
        while self._detached:
            # Form a group of two, and connect through it.
            group = None
            with suppress(RuntimeError, HangError):  # it was killed once more, or too slow
                group = membership.pair_group(self.rank)
            if group is not None:
                made = self._connect(HostBackend(group, int(self.rank > self._world.rank)))
                with self._changing:
                    self.connection = made
                    if self._closing:  # meanwhile: the neighbour waits to hear of the end
                        made.begin_close()
                return

            # Give up if the neighbour cannot come back, or takes too long.
            if not membership.may_rejoin:
                raise failures.peer_lost(self.rank, "no process comes back in its place")
            waited_s = failures.running_s - start_s
            if waited_s >= failures.limits.slow_timeout_s:
                raise failures.timed_out(waited_s, f"{self.peer_name} to come back")
            time.sleep(POLL_S)


class DroppingPort(ForwardOnlyPort):
    """Port of a free-running stage, which drops activations that it cannot send at once.

    By the time that the connection is free there will be a fresher one. Packets that are sent
    are numbered anew, so that the receiver's buffer can count those that were lost.

    Args:
        link: Link to the next stage.
        recorder: Records the time of sends.
        stats: Counts the packets that were sent and dropped.
    """

    receiver = "a replay buffer"

    def __init__(self, link: ReconnectingLink, recorder: Recorder, stats: SendStats) -> None:
        self._link = link
        self._recorder = recorder
        self._stats = stats

    def send(self, packet: Activation) -> None:
        """Send an activation, or drop it if the link is busy or the batch was skipped."""
        if packet.skipped:
            return
        with self._recorder.span("send", packet.batch, packet.batch):
            sent = self._link.send(replace(packet, batch=self._stats.sent))
        self._stats.sent += sent
        self._stats.unsent += not sent

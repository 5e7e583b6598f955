"""Port of a free-running stage to the next stage in another process: it never waits."""

from dataclasses import replace

from hocket.timeline import Recorder
from hocket.transport.forward_only_port import ForwardOnlyPort
from hocket.transport.packet import Activation
from hocket.transport.processes.reconnecting import ReconnectingLink
from hocket.transport.stats import SendStats


class DroppingPort(ForwardOnlyPort):
    """Port that drops and counts activations which cannot be sent at once.

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

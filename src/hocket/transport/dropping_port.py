"""The way to a stage that takes what comes when it likes: nobody waits until it is free."""

from dataclasses import replace

from hocket.timeline import Recorder
from hocket.transport.encoded import SendStats
from hocket.transport.packet import Activation
from hocket.transport.reconnecting import ReconnectingLink
from hocket.transport.replay_buffer import OneWayPort


class DroppingPort(OneWayPort):
    """What a stage that runs freely sees of the one behind it, in another process.

    What cannot leave at once is dropped, and counted: by the time the way is free there will
    be something fresher. What leaves is numbered, so that the buffer behind knows what is lost.

    Args:
        line: To the stage behind.
        recorder: What the time of sending is recorded by.
        ledger: Where what leaves and what is dropped is counted.
    """

    def __init__(self, line: ReconnectingLink, recorder: Recorder, ledger: SendStats) -> None:
        self._line = line
        self._recorder = recorder
        self._ledger = ledger

    def send(self, packet: Activation) -> None:
        """Send an activation ahead, if the way is free and there is something in it."""
        if packet.skipped:
            return
        with self._recorder.span("send", packet.batch, packet.batch):
            sent = self._line.send(replace(packet, batch=self._ledger.sent))
        self._ledger.sent += sent
        self._ledger.unsent += not sent

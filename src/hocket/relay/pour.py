"""The way to a stage that takes what comes when it likes: nobody waits until it is free."""

from hocket.relay.buffer import Ahead
from hocket.relay.coded import Ledger
from hocket.relay.p2p import Connection, send_activation
from hocket.relay.packet import Activation
from hocket.timeline import Recorder


class Pour(Ahead):
    """What a stage that runs freely sees of the one behind it, in another process.

    What cannot leave at once is dropped, and counted: by the time the way is free there will
    be something fresher.

    Args:
        connection: To the stage behind.
        recorder: What the time of sending is recorded by.
        ledger: Where what is dropped is counted.
    """

    def __init__(self, connection: Connection, recorder: Recorder, ledger: Ledger) -> None:
        self._connection = connection
        self._recorder = recorder
        self._ledger = ledger

    def send(self, packet: Activation) -> None:
        """Send an activation ahead, if the way is free and there is something in it."""
        if packet.skipped:
            return
        if self._connection.busy:
            self._ledger.unsent += 1
            return
        with self._recorder.span("send", packet.batch, packet.batch):
            send_activation(self._connection, packet, until=0)

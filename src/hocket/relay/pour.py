"""The way to a stage that takes what comes when it likes: nobody waits until it is free."""

from hocket.errors import PacketError
from hocket.relay.buffer import Unkept
from hocket.relay.coded import Ledger
from hocket.relay.p2p import Connection, send_activation
from hocket.relay.packet import Activation, Gradient
from hocket.timeline import Recorder


class Pour(Unkept):
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

    @property
    def busy(self) -> bool:
        """Whether what is sent now would be dropped."""
        return self._connection.busy

    def send(self, packet: Activation) -> None:
        """Send an activation ahead, if the way is free."""
        if self.busy:
            self._ledger.unsent += 1
            return
        with self._recorder.span("send", packet.batch, packet.batch):
            send_activation(self._connection, packet, until=0)

    def receive(self, batch: int) -> Gradient:
        """There is nothing to receive: PacketError."""
        raise PacketError(f"a gradient of batch {batch} was expected from behind a buffer")

"""Links to neighbours that may come back, while another thread cuts or closes them."""

import threading
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from hocket.errors import TransitError, WorldError
from hocket.transport.processes.reconnecting import ReconnectingLink


def build_link(kind=ReconnectingLink, connection=None, connect=None):
    """Build a link with a connection, or one that waits for its neighbour, which is back."""
    world = SimpleNamespace(
        name="process 0",
        names=["stage 0", "stage 1"],
        rank=0,
        failures=SimpleNamespace(running_s=0.0),
        membership=SimpleNamespace(
            detached=connect is not None, may_rejoin=True, pair_group=lambda rank: Mock()
        ),
    )
    if connect is not None:
        return kind(world, 1, connect, None)
    return kind(world, 1, lambda backend: connection or Mock(), Mock())


class CutLink(ReconnectingLink):
    """A link whose connection is cut as soon as anybody has looked at it."""

    @property
    def connection(self):
        connection, self._present = self._present, None
        return connection

    @connection.setter
    def connection(self, connection):
        self._present = connection


def test_a_connection_that_is_cut_while_it_is_taken_is_one_and_is_closed_with_the_link():
    connection = Mock()
    assert build_link(CutLink, connection).wait_connected() is connection
    build_link(CutLink, connection).begin_close()
    connection.begin_close.assert_called_once_with()


def test_a_link_that_nothing_reconnects_is_not_waited_for():
    """As in a process that was restarted alone, before its ``fit``."""
    with pytest.raises(WorldError, match=r"process 0 is not connected to stage 1; .*resume"):
        build_link(connect=Mock()).wait_connected()


def test_a_link_that_is_closed_just_when_it_begins_to_reconnect_is_closed(monkeypatch):
    """A trainer that is interrupted there is closed by another thread."""
    link, start = build_link(), threading.Thread.start

    def close_and_start(thread):
        if thread.name == "hocket-link-1":
            link.begin_close()
            assert link.finish_close(1.0)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", close_and_start)
    link.start_reconnecting()
    assert link.finish_close(1.0)


def test_a_link_that_is_closed_while_it_connects_closes_the_connection():
    """The neighbour, which has connected as well, would wait for the end."""
    made, connecting, closed = Mock(), threading.Event(), threading.Event()
    made.finish_close.return_value = True

    def connect(backend):
        connecting.set()
        assert closed.wait(60.0)
        return made

    link = build_link(connect=connect)
    link.start_reconnecting()
    assert connecting.wait(60.0)
    link.begin_close()
    assert not link.finish_close(0.05)  # it is not there yet
    threading.Timer(0.1, closed.set).start()
    assert link.finish_close(60.0)
    made.begin_close.assert_called_once_with()
    made.finish_close.assert_called_once()
    assert 0 < made.finish_close.call_args.args[0] < 60.0  # what is left of the limit


def test_a_connection_that_is_lost_while_the_link_is_closed_is_closed_once():
    connection = Mock()
    link = build_link(connect=lambda backend: connection)

    class Membership:
        """Membership of a process that closes the link when it learns of the loss."""

        detached = True

        def pair_group(self, rank):
            return Mock()

        @property
        def may_rejoin(self):
            link.begin_close()
            return True

    link._world.membership = Membership()
    connection.wait_closed.return_value = ConnectionError("reset by peer")
    link.start_reconnecting()
    assert link.finish_close(60.0)
    connection.begin_close.assert_called_once_with()
    connection.abort.assert_not_called()


@pytest.mark.parametrize(
    "error", [TransitError("damaged"), torch.OutOfMemoryError("short"), KeyError("epoch")]
)
def test_an_error_that_is_no_loss_of_the_neighbour_is_raised_and_nothing_reconnects(error):
    connection = Mock()
    connection.wait_closed.return_value = error
    link = build_link(connect=lambda backend: connection)
    link.start_reconnecting()
    link._thread.join(60.0)
    with pytest.raises(type(error), match=str(error)):
        link.raise_if_lost()
    connection.abort.assert_not_called()

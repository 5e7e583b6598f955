"""Links to neighbours that may come back, while another thread cuts or closes them."""

import threading
from types import SimpleNamespace
from unittest.mock import Mock

from hocket.transport.reconnecting import ReconnectingLink


def build_link(kind=ReconnectingLink, connection=None):
    """Build a link of a stage that is not detached, and has a connection."""
    world = SimpleNamespace(
        names=["stage 0", "stage 1"],
        rejoined=False,
        membership=SimpleNamespace(detached=False, may_rejoin=True),
    )
    return kind(world, 1, lambda lost_error, backend: connection or Mock())


class CutLink(ReconnectingLink):
    """A link whose connection is cut as soon as anybody has looked at it."""

    @property
    def connection(self):
        connection, self._present = self._present, None
        return connection

    @connection.setter
    def connection(self, connection):
        self._present = connection


def test_a_connection_that_is_cut_while_it_is_taken_is_one():
    connection = Mock()
    assert build_link(CutLink, connection).wait_connected() is connection


def test_a_connection_that_is_cut_while_the_link_is_closed_is_closed():
    connection = Mock()
    build_link(CutLink, connection).begin_close()
    connection.begin_close.assert_called_once_with()


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

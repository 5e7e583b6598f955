"""The end of a session: closed in good order, given up after an error, or forgotten."""

import weakref

from hocket.errors import HocketError
from hocket.training.session.session import Session


class SessionLife:
    """Session that is closed once, in the background if the trainer is forgotten.

    Args:
        session: The session, which is open.

    Attributes:
        session: The session, open or closed.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._closed = False
        self._forgotten = weakref.finalize(self, session.world.close_in_background)
        self._forgotten.atexit = False  # then all worlds are closed in good order

    @property
    def opened(self) -> Session:
        """The session while it is open.

        Raises:
            HocketError: It is closed.
        """
        if self._closed:
            raise HocketError(
                "this trainer is closed: its network remains, and everything else has to be "
                "done before close, or with a new trainer"
            )
        return self.session

    def leave(self, error: BaseException | None = None) -> None:
        """Leave the world and give the network back; later calls do nothing.

        Args:
            error: The error that ended the use of the session. Other processes hear of it, and
                this one does not wait for them. None if it ended in good order.
        """
        self._forgotten.detach()
        if self._closed:
            return
        world = self.session.world
        if error is None:
            world.close()
        else:
            world.report_failure(error)
            world.close_in_background()
        self.session.release()
        self._closed = True

"""The life of a trainer's session: used until it is closed, given up, or forgotten."""

import weakref

from hocket.errors import HocketError
from hocket.training.session.session import Session


class SessionLife:
    """Session that is closed once, in the background if nobody does it.

    Args:
        session: The session, which is open.

    Attributes:
        session: The session, open or closed.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._forgotten = weakref.finalize(self, session.world.close_in_background)
        self._forgotten.atexit = False  # then all worlds are closed in good order

    @property
    def opened(self) -> Session:
        """The session while it is open.

        Raises:
            HocketError: It is closed.
        """
        if self.session.closed:
            raise HocketError(
                "this trainer is closed: its network remains, and everything else has to be "
                "done before close, or with a new trainer"
            )
        return self.session

    def leave(self, error: BaseException | None = None) -> None:
        """Close the session; after an error without waiting for other processes.

        Args:
            error: The error that ended its use; None if it ended in good order.
        """
        self._forgotten.detach()
        if error is None:
            self.session.close()
        else:
            self.session.abandon(error)

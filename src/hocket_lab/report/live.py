"""Server of a report that follows its runs, for browsers of this machine."""

import hashlib
import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress
from glob import glob
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from typing import Any

from hocket.errors import HocketError, OptionError
from hocket_lab.report.find_runs import find_runs
from hocket_lab.report.page import build_fitting_page

ADDRESS = "127.0.0.1"
TIMEOUT_S = 10.0
"""Seconds that a browser may be silent within a request."""
MOST_CONNECTIONS = 16
"""Number of connections at a time; the oldest one is ended for one more."""


class LiveReport(ThreadingHTTPServer):
    """Server of a page that is built from the files of runs at each request.

    Only this machine reaches it, and its address ends in a word that other users of the machine
    do not know. A browser that was sent here under the name of another host is refused, so that
    no page of another site can read the runs.

    Args:
        paths: Folders of runs, folders of such folders, or folders of studies.
        port: Port to listen on; 0 for any that is free.

    Raises:
        OptionError: The port is taken or not allowed.
    """

    daemon_threads = True

    def __init__(self, paths: Sequence[Path], port: int) -> None:
        self._paths = paths
        try:
            super().__init__((ADDRESS, port), _Handler)
        except (OSError, OverflowError) as error:
            raise OptionError(
                f"cannot listen on port {port} of {ADDRESS}: {error}; give another --port, or "
                "0 for any that is free"
            ) from error
        self.root = f"/{secrets.token_urlsafe(16)}/"
        self.address = f"http://{ADDRESS}:{self.server_port}{self.root}"
        self._open: dict[socket.socket, None] = {}
        self.hosts = {f"{name}:{self.server_port}" for name in (ADDRESS, "localhost")}

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a request in a thread, and end the oldest connection if there are many."""
        self._open[request] = None
        if len(self._open) > MOST_CONNECTIONS:
            oldest, *_ = self._open
            self._open.pop(oldest, None)
            with suppress(OSError):  # it has just ended
                oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """End a connection."""
        self._open.pop(request, None)
        super().shutdown_request(request)

    def version(self) -> str:
        """Return the state of all files of the runs, without reading them."""
        state = hashlib.sha256()
        # Of a run, of a folder of runs, and of a study, whose runs are one folder deeper.
        for path, depth in product(self._paths, ("*", "*/*", "*/*/*")):
            for name in sorted(glob(depth, root_dir=path, include_hidden=True)):
                file = path / name
                try:
                    found = file.stat()
                except OSError:  # replaced at this moment, or not to be seen by this user
                    continue
                state.update(
                    f"{file}:{found.st_size}:{found.st_mtime_ns}\n".encode(errors="replace")
                )
        return state.hexdigest()

    def page(self) -> str:
        """Return the report of the runs as they are now.

        Raises:
            HocketError: There is no run that can be read.
        """
        version = self.version()  # of before the reading, so that no change is missed
        return build_fitting_page(find_runs(self._paths), version)[0]


class _Handler(BaseHTTPRequestHandler):
    server: LiveReport
    timeout = TIMEOUT_S

    def do_GET(self) -> None:
        host = self.headers.get("Host", "")  # without a port if that is HTTP's
        if (host if ":" in host else f"{host}:80") not in self.server.hosts:
            self._answer(HTTPStatus.FORBIDDEN, "this server answers to its own address only")
        elif self.path == f"{self.server.root}version":
            self._answer(HTTPStatus.OK, self.server.version())
        elif self.path != self.server.root:
            self._answer(HTTPStatus.NOT_FOUND, "the report is at the whole address only")
        else:
            try:
                self._answer(HTTPStatus.OK, self.server.page(), "text/html")
            except HocketError as error:
                self._answer(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
            except Exception as error:  # for the reader, who sees no traceback of the server
                reason = f"the page cannot be built ({type(error).__name__}: {error})"
                self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, reason)

    do_HEAD = do_GET

    def _answer(self, status: HTTPStatus, text: str, kind: str = "text/plain") -> None:
        body = text.encode(errors="replace")
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        if status is HTTPStatus.SERVICE_UNAVAILABLE:
            self.send_header("Refresh", "2")  # a run may be about to write its first file
        with suppress(ConnectionError):  # the browser asks no more, or is closed
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print no line for a request."""

"""The page of runs, served to this host alone.

::

    /           the page, with the data of now
    /data.json  the data; the page asks for them once a second
"""

from __future__ import annotations

import os
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from freewheel.report import page
from freewheel.watch._watched import Watched

ADDRESS, PORT = "127.0.0.1", 8421
NAMES = ("127.0.0.1", "localhost")  # a page under any other name could be a stranger's, who has pointed it here
PLAIN = "text/plain; charset=utf-8"
HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class PageServer(ThreadingHTTPServer):
    """Serves the page of watched runs on the loopback interface.

    Args:
        watched: The runs.
        port: The port; 0 lets the system choose.

    Example:
        >>> from urllib.request import urlopen
        >>> import tempfile, threading
        >>> from pathlib import Path
        >>> with PageServer(Watched([Path(tempfile.mkdtemp()) / "first"]), port=0) as server:
        ...     threading.Thread(target=server.serve_forever, daemon=True).start()
        ...     answer = urlopen(f"{server.url}data.json")
        ...     server.shutdown()
        >>> answer.status, answer.headers["Content-Type"]
        (200, 'application/json')
    """

    allow_reuse_address = os.name == "posix"  # elsewhere that would let two servers have one port

    def __init__(self, watched: Watched, port: int = PORT) -> None:
        self.watched = watched
        if not 0 <= port <= 65535:
            raise ValueError(f"--port {port}: give a number up to 65535, or 0 for one that the system chooses")
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            raise OSError(
                f"--port {port}: it cannot be opened ({error.strerror}); give another one, or 0 for one that the "
                "system chooses"
            ) from None

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{ADDRESS}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say what went wrong, unless it is that the browser has gone."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "Freewheel", ""
    timeout = 60.0  # seconds that a connection may be idle

    @property
    def _watched(self) -> Watched:
        assert isinstance(self.server, PageServer)
        return self.server.watched

    def do_GET(self) -> None:
        if (self.headers.get("Host") or "").partition(":")[0].lower() not in NAMES:
            self._answer(HTTPStatus.FORBIDDEN, PLAIN, f"This page answers under {' and '.join(NAMES)} only.\n")
            return
        path = self.path.partition("?")[0]
        if path == "/":
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", page(self._watched.look().data, live=True))
        elif path == "/data.json":
            self._data()
        else:
            self._answer(HTTPStatus.NOT_FOUND, PLAIN, "There is nothing here but / and /data.json.\n")

    def _data(self) -> None:
        view = self._watched.look()
        tag = f'"{view.version}"'
        if self.headers.get("If-None-Match") == tag:
            self._answer(HTTPStatus.NOT_MODIFIED, tag=tag)
        else:
            self._answer(HTTPStatus.OK, "application/json", view.text, tag=tag)

    def _answer(self, status: HTTPStatus, kind: str = "", text: str = "", *, tag: str = "") -> None:
        content = text.encode()
        self.send_response(status)
        headers = {"Content-Type": kind}
        if status is not HTTPStatus.NOT_MODIFIED:
            headers["Content-Length"] = str(len(content))
        for name, value in {**headers, "ETag": tag, "Cache-Control": "no-cache", **HEADERS}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the page asks once a second."""

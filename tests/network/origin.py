"""A web server on loopback, and a command that fetches from it through the proxy of its sandbox."""

from __future__ import annotations

import http.server
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: Fetches each address, also those of loopback through the proxy, and prints what came.
_FETCH = """
import os, sys, urllib.error, urllib.request
for name in ("NO_PROXY", "no_proxy"):
    os.environ.pop(name, None)
for url in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(url, timeout=30).read().decode(), flush=True)
    except urllib.error.HTTPError as error:
        print(error.code, flush=True)
"""


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "6")
        self.end_headers()
        self.wfile.write(b"ORIGIN")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def origin() -> Iterator[int]:
    """The port of a server that answers ORIGIN."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    serving = threading.Thread(target=server.serve_forever, args=(0.05,))
    serving.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def fetch(*urls: str) -> list[str]:
    """The words of a command that fetches these."""
    return [sys.executable, "-I", "-c", _FETCH, *urls]

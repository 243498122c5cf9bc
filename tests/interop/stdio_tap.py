"""A program between a client and a server on stdio, that writes down every line.

``python stdio_tap.py LOG COMMAND...`` runs the command, passes lines both ways, and appends
``{"from_client", "at", "message"}`` to the log.  Standard library only: it is run as a file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from typing import BinaryIO


class Tap:
    """Two directions, one log."""

    def __init__(self, log: str) -> None:
        self._log = open(log, "ab", buffering=0)
        self._began = time.monotonic()

    def pump(self, source: BinaryIO, sink: BinaryIO, *, from_client: bool) -> None:
        """Pass on lines until there are no more, or nobody reads them."""
        for line in iter(source.readline, b""):
            at = time.monotonic() - self._began
            entry = {"from_client": from_client, "at": at, "message": json.loads(line)}
            self._log.write(json.dumps(entry).encode() + b"\n")
            try:
                sink.write(line)
                sink.flush()
            except OSError:
                break
        try:
            sink.close()
        except OSError:
            pass


def main(log: str, *command: str) -> int:
    """The exit code is the server's."""
    tap = Tap(log)
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    up = threading.Thread(
        target=tap.pump,
        args=(sys.stdin.buffer, server.stdin),
        kwargs={"from_client": True},
        daemon=True,
    )
    up.start()
    tap.pump(server.stdout, sys.stdout.buffer, from_client=False)
    return server.wait()


if __name__ == "__main__":
    # Not sys.exit: the thread may wait for a client that keeps our stdin open.
    os._exit(main(*sys.argv[1:]))

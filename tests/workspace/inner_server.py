"""A server for commands of a workspace: listens on a port of their loopback and echoes."""

from __future__ import annotations

import sys

from handrail import Process, Workspace

#: Says ``ready``, then echoes each connection to its end, after a greeting.  A connection that says
#: ``pour`` is sent more than any buffer holds.
_ECHO = """
import socket, sys, threading
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
listener = socket.socket(family)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind((sys.argv[1], int(sys.argv[2])))
listener.listen(512)
print("ready", flush=True)
def serve(conn):
    try:
        conn.sendall(b"hello ")
        while data := conn.recv(65536):
            if data == b"pour":
                for _ in range(64):
                    conn.sendall(bytes(1 << 20))
            else:
                conn.sendall(data)
    except OSError:
        pass
    conn.close()
while True:
    threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()
"""
#: Connects without a proxy and says what it got.
_ASK = """
import socket, sys
try:
    conn = socket.create_connection((sys.argv[1], int(sys.argv[2])), 20)
    conn.sendall(b"there")
    conn.shutdown(socket.SHUT_WR)
    said = b""
    while data := conn.recv(99):
        said += data
    print(said.decode(), flush=True)
except OSError as error:
    print(type(error).__name__, flush=True)
"""


def echo(host: str, port: int) -> list[str]:
    """The words of a command that echoes."""
    return [sys.executable, "-I", "-c", _ECHO, host, str(port)]


def ask(host: str, port: int) -> list[str]:
    """The words of a command that connects there."""
    return [sys.executable, "-I", "-c", _ASK, host, str(port)]


def listening(ws: Workspace, port: int, host: str = "127.0.0.1") -> Process:
    """A server that listens by now."""
    process = ws.start(echo(host, port))
    assert process.wait_for("ready", timeout=30).match
    return process

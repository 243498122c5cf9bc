"""Be the ProxyCommand of ssh: ``python -I -S -B tunnel_program.py PROXY PORT HOST PORT``.

Opens a tunnel through an HTTP proxy and joins it to stdin and stdout.  Runs in the sandbox of a
command.  Standard library only, and little of it: git starts one for each fetch.
"""

from __future__ import annotations

import _socket
import _thread
import os
import sys

_MOST_HEAD = 65536
_PIECE = 65536


def main(proxy: str, proxy_port: str, host: str, port: str) -> int:
    """Relay until both sides have ended; 1: the proxy has refused, and stderr has its reason."""
    line = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    line.connect((proxy, int(proxy_port)))
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    line.sendall(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
    head = b""
    while b"\r\n\r\n" not in head:
        data = line.recv(_PIECE) if len(head) < _MOST_HEAD else b""
        if not data:
            os.write(2, b"the proxy has closed the connection\n")
            return 1
        head += data
    head, _, early = head.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if len(words) < 2 or words[1] != b"200":
        os.write(2, head.partition(b"\r\n")[0] + b": " + early + b"\n")
        return 1
    _write(early)
    # Each way in a thread of its own: one that is full must not stop the other.
    _thread.start_new_thread(_upload, (line,))
    while data := line.recv(_PIECE):
        _write(data)
    return 0


def _upload(line: _socket.socket) -> None:
    try:
        while data := os.read(0, _PIECE):
            line.sendall(data)
        line.shutdown(_socket.SHUT_WR)
    except OSError:
        pass  # the other end is gone, which the other thread sees


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

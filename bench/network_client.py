"""Measure the proxy of HTTP_PROXY from where this runs: one command a line, one JSON answer a line.

``network_client.py PORT``, the port of bench/network.py's origin on 127.0.0.1.  Commands:
``download BYTES``, ``connections N`` (eight at a time), ``latency N`` (connect and one byte),
``ping N``.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import socket
import statistics
import sys
import threading
import time
from urllib.parse import unquote, urlsplit

PORT = int(sys.argv[1])
PROXY = urlsplit(os.environ["HTTP_PROXY"])
CREDENTIALS = ""
if PROXY.username:
    words = f"{unquote(PROXY.username)}:{unquote(PROXY.password or '')}".encode()
    CREDENTIALS = f"Proxy-Authorization: Basic {base64.b64encode(words).decode()}\r\n"
HEAD = f"CONNECT 127.0.0.1:{PORT} HTTP/1.1\r\nHost: 127.0.0.1:{PORT}\r\n{CREDENTIALS}\r\n".encode()


def tunnel(first: bytes) -> socket.socket:
    """A tunnel to the origin that was sent its first bytes."""
    line = socket.create_connection((PROXY.hostname, PROXY.port))
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    line.sendall(HEAD)
    head = line.recv(4096)
    while b"\r\n\r\n" not in head:
        more = line.recv(4096)
        if not more:
            raise SystemExit(f"the proxy said {head!r}")
        head += more
    if b" 200 " not in head[:20]:
        raise SystemExit(f"the proxy said {head!r}")
    line.sendall(first)
    return line


def download(size: int) -> float:
    """Megabytes a second."""
    buffer = bytearray(1 << 20)
    line = tunnel(b"d%d\n" % size)
    begun, left = time.perf_counter(), size
    while left:
        left -= line.recv_into(buffer)
    return size / 1e6 / (time.perf_counter() - begun)


def once() -> float:
    """Seconds from connect to the first byte."""
    begun = time.perf_counter()
    line = tunnel(b"e")
    line.recv(1)
    taken = time.perf_counter() - begun
    line.close()
    return taken


def connections(count: int) -> float:
    """Connections a second."""
    threads = [
        threading.Thread(target=lambda: [once() for _ in range(count // 8)]) for _ in range(8)
    ]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return count // 8 * 8 / (time.perf_counter() - begun)


def latency(count: int) -> float:
    """Median of microseconds, one after the other."""
    return statistics.median(once() for _ in range(count)) * 1e6


def ping(count: int) -> float:
    """Median of microseconds for a byte to and fro on an open tunnel."""
    line = tunnel(b"e")
    line.recv(1)
    found = []
    for _ in range(count):
        begun = time.perf_counter()
        line.sendall(b"x")
        line.recv(1)
        found.append(time.perf_counter() - begun)
    line.close()
    return statistics.median(found) * 1e6


def main() -> None:
    """Obey until the end of stdin."""
    print("ready", flush=True)
    for command in sys.stdin:
        word, number = command.split()
        do = {"download": download, "connections": connections, "latency": latency, "ping": ping}
        before = resource.getrusage(resource.RUSAGE_SELF)
        value = do[word](int(number))
        after = resource.getrusage(resource.RUSAGE_SELF)
        own = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(json.dumps({"value": value, "cpu": own}), flush=True)


main()

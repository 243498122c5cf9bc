"""A line that breaks in the middle of a command, and a caller that does not notice.

Starts a server and a small relay in front of it, cuts the relay's connections while a command
is writing, and shows that every line has arrived once.

    python examples/cut_connection.py
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import threading

from handrail import Output, Workspace

LINES = 40


class Relay:
    """Passes connections on to another port, and can cut them all."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                one, _ = self._listener.accept()
            except OSError:
                return
            other = socket.create_connection(("127.0.0.1", self._to))
            self._open += [one, other]
            for source, target in ((one, other), (other, one)):
                threading.Thread(target=_copy, args=(source, target), daemon=True).start()

    def cut(self) -> int:
        """Break every connection there is; how many sockets that were."""
        broken, self._open = self._open, []
        for sock in broken:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # broken already
        return len(broken)

    def close(self) -> None:
        self._listener.close()
        self.cut()


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
    except OSError:
        pass
    finally:
        for sock in (source, target):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        source.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as state:
        serve = [sys.executable, "-m", "handrail", "serve", "--state-dir", state]
        server = subprocess.Popen(serve, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            relay = Relay(int(server.stdout.readline().strip().rpartition(":")[2]))
            run_through(relay, state)
            relay.close()
        finally:
            server.terminate()
            server.wait(10)


def run_through(relay: Relay, directory: str) -> None:
    cuts = 0

    def watch(output: Output) -> None:
        nonlocal cuts
        if "tick 10\n" in output.text or "tick 25\n" in output.text:
            relay.cut()
            cuts += 1

    script = f"for i in $(seq {LINES}); do echo tick $i; sleep 0.02; done"
    with Workspace(directory, at=f"ws://127.0.0.1:{relay.port}", sandbox="off") as ws:
        result = ws.run(script, on_output=watch, timeout=60)
    whole = result.stdout == "".join(f"tick {i}\n" for i in range(1, LINES + 1))
    print(f"cut {cuts} times; exit code {result.exit_code}; every line once: {whole}")


if __name__ == "__main__":
    main()

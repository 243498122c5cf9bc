"""A server that is killed in the middle of a command, and a caller that does not notice.

Starts a server, kills it with SIGKILL while a command is writing and a REPL is open, starts the
next one with the same state directory and the same address, and goes on with both.

    python examples/server_crash.py
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile

from handrail import Output, Workspace

LINES = 60


class Server:
    """``handrail serve`` on a Unix socket, which can be killed and started again."""

    def __init__(self, state: str) -> None:
        self.url = f"unix:{state}/socket"
        self._argv = [sys.executable, "-m", "handrail", "serve", "--state-dir", state]
        self._process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        argv = [*self._argv, "--listen", self.url]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()  # it listens
        return process

    def crash(self) -> None:
        """Kill it without a word, and start the next."""
        self._end(signal.SIGKILL)
        self._process = self._start()

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        with self._process as process:  # waits for its end
            process.send_signal(number)


def main() -> None:
    with tempfile.TemporaryDirectory() as state:
        os.chmod(state, 0o700)
        server = Server(state)
        try:
            survive(server, state)
        finally:
            server.stop()


def survive(server: Server, directory: str) -> None:
    crashes = 0

    def watch(output: Output) -> None:
        nonlocal crashes
        if "tick 20\n" in output.text:
            server.crash()
            crashes += 1

    with Workspace(directory, at=server.url, sandbox="off") as ws:
        repl = ws.start([sys.executable, "-q"], tty=True)
        repl.wait_for(">>> ", timeout=20)
        repl.send("n = 41\n")
        repl.wait_for(">>> ", timeout=20)
        script = f"for i in $(seq {LINES}); do echo tick $i; sleep 0.02; done; exit 3"
        result = ws.run(script, on_output=watch, timeout=60)
        repl.send("n + 1\n")
        same = bool(repl.wait_for(r"\b42\b", timeout=20))
    whole = result.stdout == "".join(f"tick {i}\n" for i in range(1, LINES + 1))
    print(f"{crashes} crash; exit code {result.exit_code}; every line once: {whole}")
    print(f"the REPL is the same: {same}")


if __name__ == "__main__":
    main()

"""A server with a token, a client that has it, one that has another, and one that has none.

Here both ends are on this machine; elsewhere the server has ``--listen ws://0.0.0.0:8443`` behind a
proxy for TLS, and clients have ``at="wss://box:8443"``.  ``python examples/remote_token.py``.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from handrail import AuthenticationFailed, Workspace


@contextmanager
def server(directory: Path, token: str) -> Iterator[str]:
    """The address of a server that asks for the token."""
    file = directory / "token"
    file.touch(mode=0o600)
    file.write_text(token)
    auth = ["--ws-auth", "capability-token", "--ws-token-file", str(file)]
    argv = [sys.executable, "-P", "-m", "handrail", "serve", *auth]
    argv += ["--state-dir", str(directory / "state")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def attempt(url: str, root: Path, token: str | None) -> str:
    try:
        with Workspace(root, at=url, token=token, request_timeout=10) as ws:
            return ws.run("echo welcome").stdout.strip()
    except AuthenticationFailed:
        return "refused"


def main() -> None:
    token = secrets.token_hex(32)
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        os.makedirs(place / "project")
        with server(place, token) as url:
            print("the token:", attempt(url, place / "project", token))
            print("another:", attempt(url, place / "project", secrets.token_hex(32)))
            print("none:", attempt(url, place / "project", None))
            with Workspace(place / "project", at=url, token=token) as ws:
                ws.files.write("data.txt", "1\n2\n3\n")
                print("lines there:", ws.run("wc -l < data.txt").stdout.strip())
                hidden = ws.run(["cat", str(place / "token")])
                print("can a command read the token:", token in hidden.stdout)


if __name__ == "__main__":
    main()

"""Serve the files of this machine from a sandbox to a client outside it.

One request a line, one answer a line, as JSON; contents are base64 and sent in pieces, so that
neither side blocks the other.  Ends with its standard input.  ``remote_files.py`` in
``orchestrator/`` is the other end.
"""

from __future__ import annotations

import base64
import json
import sys
from typing import Any

from handrail.errors import FilesError
from handrail.patch.local import LocalFiles

#: Bytes of content in one answer.
PIECE = 192 * 1024


class Desk:
    """Answers one request after the other; keeps contents that are sent in pieces."""

    def __init__(self) -> None:
        self._files = LocalFiles()
        self._incoming = bytearray()
        self._outgoing = b""

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer one request."""
        try:
            return self._do(request["do"], request.get("path", ""), request.get("data", ""))
        except FilesError as error:
            return {"error": str(error), "kind": error.kind, "path": error.path}

    def _do(self, what: str, path: str, data: str) -> dict[str, Any]:
        match what:
            case "read":
                self._outgoing = self._files.read(path)
                return self._piece()
            case "more":
                return self._piece()
            case "hold":
                self._incoming += base64.b64decode(data)
            case "write":
                content, self._incoming = bytes(self._incoming), bytearray()
                self._files.write(path, content)
            case "copy":
                self._files.copy(base64.b64decode(data).decode(errors="surrogateescape"), path)
            case "remove":
                self._files.remove(path)
            case "mkdir":
                self._files.mkdir(path)
            case "rmdir":
                self._files.rmdir(path)
            case _:
                raise FilesError(f"there is no {what}", kind="invalid_input", path=path)
        return {}

    def _piece(self) -> dict[str, Any]:
        piece, self._outgoing = self._outgoing[:PIECE], self._outgoing[PIECE:]
        return {"data": base64.b64encode(piece).decode(), "more": bool(self._outgoing)}


def main() -> None:
    """Answer until standard input ends."""
    desk = Desk()
    for line in sys.stdin.buffer:
        sys.stdout.write(json.dumps(desk.answer(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

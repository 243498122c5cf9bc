"""Make the corpus out of the recorded transcripts: ``python fuzz/seeds.py``.

The seeds are part of the project; this is run again when the transcripts change.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TRANSCRIPTS = HERE.parent / "tests" / "cases" / "exec-server-transcripts.jsonl"
MASK = b"\x12\x34\x56\x78"
#: A seed that is much longer only makes everything slower.
LONGEST = 4096
TEXT, CLOSE, PING = 0x1, 0x8, 0x9
UPGRADE = (
    ("Host", "127.0.0.1"),
    ("Upgrade", "websocket"),
    ("Connection", "Upgrade"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
)


def messages(cases: list[dict[str, Any]]) -> Iterator[bytes]:
    """What clients send: one message of each shape, and all that is odd."""
    seen = set()
    for step in steps(cases):
        if "frame" in step:
            shape = outline(step["frame"])
            if shape not in seen:
                seen.add(shape)
                yield json.dumps(step["frame"]).encode()
        elif "text" in step and "write_file" not in step:
            yield step["text"].encode()


def outline(value: Any) -> str:
    """A message without its values, but with its method."""
    if isinstance(value, dict):
        members = (
            f"{key}={item}" if key == "method" else f"{key}:{outline(item)}"
            for key, item in sorted(value.items())
        )
        return "{" + ",".join(members) + "}"
    return type(value).__name__


def frames(cases: list[dict[str, Any]]) -> Iterator[bytes]:
    """The same on a WebSocket: alone, in fragments, between control frames."""
    found = list(messages(cases))
    for message in found[::4]:
        yield frame(TEXT, message)
    first, second = found[0], found[1]
    yield frame(TEXT, first) + frame(TEXT, second)
    yield frame(TEXT, first[:9], fin=False) + frame(PING, b"x") + frame(0, first[9:])
    yield frame(PING, b"") + frame(TEXT, first) + frame(CLOSE, b"\x03\xe8bye")
    yield frame(0x2, first)
    yield frame(TEXT, first * (70_000 // len(first)))[:LONGEST]


def frame(opcode: int, payload: bytes, fin: bool = True) -> bytes:
    """A masked frame, as clients send it."""
    size = len(payload)
    if size < 126:
        head = bytes([size | 0x80])
    elif size < 1 << 16:
        head = b"\xfe" + size.to_bytes(2, "big")
    else:
        head = b"\xff" + size.to_bytes(8, "big")
    masked = bytes(byte ^ MASK[i % 4] for i, byte in enumerate(payload))
    return bytes([opcode | (0x80 if fin else 0)]) + head + MASK + masked


def heads(cases: list[dict[str, Any]]) -> Iterator[bytes]:
    """The HTTP requests of the cases, and the upgrades of their connections."""
    for step in steps(cases):
        if "http" in step:
            request = step["http"]
            headers = (("Host", "127.0.0.1"), *request.get("headers", {}).items())
            yield head(f"{request.get('method', 'GET')} {request['path']} HTTP/1.1", headers)
        elif "open" in step:
            yield head("GET / HTTP/1.1", (*UPGRADE, *step.get("headers", {}).items()))
    answer = (("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", "x"))
    yield head("HTTP/1.1 101 Switching Protocols", answer)


def head(first: str, headers: tuple[tuple[str, str], ...]) -> bytes:
    """A first line and headers."""
    lines = [first, *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def uris(cases: list[dict[str, Any]]) -> Iterator[bytes]:
    """Everything that stands where a path URI belongs."""
    for step in steps(cases):
        for key, value in members(step.get("frame")):
            if isinstance(value, str) and (key in ("cwd", "path") or value.startswith("file:")):
                # Folders of cases have a name of their own each time.
                yield re.sub(r"\$\{CWD_URI\}", "file:///w", value).encode()


def members(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """All values at any depth, each with the key it is under."""
    yield key, value
    if isinstance(value, dict):
        for name, item in value.items():
            yield from members(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from members(item, key)


def steps(cases: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The steps of all cases."""
    for case in cases:
        yield from case["send"]


def main() -> None:
    """Write every corpus anew."""
    cases = [json.loads(line) for line in TRANSCRIPTS.read_text().splitlines()]
    makers = {"codec": messages, "frames": frames, "http_head": heads, "path_uri": uris}
    for name, make in makers.items():
        folder = HERE / "corpus" / name
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        seeds = dict.fromkeys(seed for seed in make(cases) if len(seed) <= LONGEST)
        for seed in seeds:
            (folder / hashlib.sha256(seed).hexdigest()[:12]).write_bytes(seed)
        print(f"{name}: {len(seeds)} seeds")


if __name__ == "__main__":
    main()

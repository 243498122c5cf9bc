"""Rows of ``side_by_side.py`` for file calls: sandboxed in handrail, plain in the peer.

The peer starts a process for each sandboxed call, so it is its plain calls that ours stand beside.
Only the call is timed; what it needs is made before and taken away after it, by the client.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from wire import now, session, workspace_sandbox

if TYPE_CHECKING:
    from side_rows import Block, Place, Row

_KB = "AAAA" * 334
#: The names in the folder that is listed.
_NAMES = 20


class Step:
    """One call on a workspace: what is there before it, its params, and what it leaves."""

    def __init__(self, root: str, number: int) -> None:
        self._root = root
        self.name = f"n{number}"

    def path(self, name: str) -> str:
        return os.path.join(self._root, name)

    def uri(self, name: str) -> str:
        return "file://" + self.path(name)

    def fill(self, name: str) -> None:
        with open(self.path(name), "wb") as file:
            file.write(bytes(1000))


Params = Callable[[Step], dict[str, Any]]
Work = Callable[[Step], None]


def _nothing(_: Step) -> None:
    """For a step that needs nothing."""


def file_call(
    method: str, params: Params, *, before: Work = _nothing, after: Work = _nothing
) -> Row:
    """One call after the other in a workspace that lives on."""

    async def row(place: Place) -> Block:
        root = place.path("files")
        _workspace(root)
        c = await session(place.url)
        sandbox = None if place.peer else workspace_sandbox("file://" + root)
        number = 0

        async def block(count: int) -> list[float]:
            nonlocal number
            seconds = []
            for _ in range(count):
                number += 1
                step = Step(root, number)
                before(step)
                request = {**params(step), "sandbox": sandbox}
                begin = now()
                await c.request(method, request)
                seconds.append(now() - begin)
                after(step)
            return seconds

        return block

    return row


def first_call(method: str, params: Params, *, fresh: bool = False) -> Row:
    """The first call of a plan; ``fresh``: in a server of which it is the first at all."""

    async def row(place: Place) -> Block:
        number = 0

        async def once() -> float:
            nonlocal number
            number += 1
            root = place.path(f"first-{method.removeprefix('fs/')}-{fresh}-{number}")
            _workspace(root)
            request = dict(params(Step(root, 0)))
            request["sandbox"] = None if place.peer else workspace_sandbox("file://" + root)

            async def ask(url: str) -> float:
                c = await session(url)
                begin = now()
                await c.request(method, request)
                seconds = now() - begin
                await c.close()
                return seconds

            seconds = await place.use_fresh(ask) if fresh else await ask(place.url)
            # Without its errors: the server takes its placeholders away at the same time.
            shutil.rmtree(root, ignore_errors=True)
            return seconds

        async def block(count: int) -> list[float]:
            return [await once() for _ in range(count)]

        return block

    return row


def _workspace(root: str) -> None:
    shutil.rmtree(root, ignore_errors=True)
    os.makedirs(os.path.join(root, "sub"))
    for number in range(_NAMES):
        with open(os.path.join(root, "sub", f"file{number}"), "wb") as file:
            file.write(bytes(1000))


def _metadata(step: Step) -> dict[str, Any]:
    return {"path": step.uri("sub/file1")}


def _list(step: Step) -> dict[str, Any]:
    return {"path": step.uri("sub")}


def _make(step: Step) -> dict[str, Any]:
    return {"path": step.uri(step.name), "recursive": True}


def _remove(step: Step) -> dict[str, Any]:
    return {"path": step.uri(step.name), "recursive": True, "force": True}


def _write(step: Step) -> dict[str, Any]:
    return {"path": step.uri(step.name), "dataBase64": _KB}


def _replace(step: Step) -> dict[str, Any]:
    return {"path": step.uri("sub/file2"), "dataBase64": _KB}


def _large(size: int) -> Params:
    text = "AAAA" * (size // 3)
    return lambda step: {"path": step.uri("large"), "dataBase64": text}


def _copy(step: Step) -> dict[str, Any]:
    source, destination = step.uri("sub/file3"), step.uri(step.name)
    return {"sourcePath": source, "destinationPath": destination, "recursive": False}


def _unlink(step: Step) -> None:
    os.unlink(step.path(step.name))


FILE_ROWS: dict[str, tuple[Row, int]] = {
    "fs_metadata": (file_call("fs/getMetadata", _metadata), 40),
    "fs_canonicalize": (file_call("fs/canonicalize", _metadata), 40),
    "fs_read": (file_call("fs/readFile", _metadata), 40),
    "fs_list": (file_call("fs/readDirectory", _list), 40),
    "fs_mkdir": (
        file_call("fs/createDirectory", _make, after=lambda s: os.rmdir(s.path(s.name))), 40),
    "fs_remove": (file_call("fs/remove", _remove, before=lambda s: s.fill(s.name)), 40),
    "fs_write_new": (file_call("fs/writeFile", _write, after=_unlink), 40),
    "fs_write_over": (file_call("fs/writeFile", _replace), 40),
    "fs_copy": (file_call("fs/copy", _copy, after=_unlink), 40),
    "fs_copy_over": (
        file_call("fs/copy", _copy, before=lambda s: s.fill(s.name), after=_unlink), 40),
    "fs_write_8MiB": (file_call("fs/writeFile", _large(8 << 20)), 1),
    "first_metadata": (first_call("fs/getMetadata", _metadata), 1),
    "first_list": (first_call("fs/readDirectory", _list), 1),
    "first_mkdir": (first_call("fs/createDirectory", _make), 1),
    "first_write": (first_call("fs/writeFile", _write), 1),
    "fresh_metadata": (first_call("fs/getMetadata", _metadata, fresh=True), 1),
    "fresh_write": (first_call("fs/writeFile", _write, fresh=True), 1),
}  # fmt: skip

"""A server with workspaces, and the calls that tests of it share."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import tarfile
from pathlib import Path
from typing import Any

from handrail.protocol import path_uri
from handrail.template_archive import pack
from tests.support.clients import Client

_NUMBERS = itertools.count(1)
SHARE = "cpus=4,memory=4GiB,workspaces=100"


def options(directory: Path, *more: str, share: str = SHARE) -> tuple[str, ...]:
    """The options of a server that holds workspaces there."""
    return ("--workspaces", str(directory), "--share", share, "--min-free", "0", *more)


def path_of(uri: str) -> Path:
    return Path(os.fsdecode(path_uri.to_path(uri)))


async def create(client: Client, workspace_id: str = "", **members: Any) -> dict[str, Any]:
    """Make a workspace of owner «o»."""
    wanted = {"owner": "o", "workspaceId": workspace_id or f"w{next(_NUMBERS)}", **members}
    result: dict[str, Any] = await client.call("workspace/create", wanted)
    return {"id": wanted["workspaceId"], **result}


async def listed(client: Client, **members: Any) -> dict[str, dict[str, Any]]:
    """The workspaces of a server, by id."""
    found = await client.call("workspace/list", members)
    return {one["workspaceId"]: one for one in found["workspaces"]}


def stored(directory: Path) -> set[str]:
    """The ids of the workspaces that a server has written down there."""
    ids: set[str] = set()
    for line in (directory / "records").read_bytes().splitlines():
        if line.startswith(b"+"):
            ids.add(json.loads(line[1:])["id"])
        else:
            ids.discard(line[1:].decode())
    return ids


async def ran(client: Client, key: str, made: dict[str, Any], script: str, **members: Any) -> bytes:
    """The output of a command in a workspace."""
    await client.shell(key, script, cwd=made["root"], **members)
    return await client.read_to_close(key)


def packed(source: Path, target: Path) -> str:
    """Pack a directory; returns the digest."""
    with target.open("wb") as file:
        return pack(str(source), file)


def archive_of(target: Path, *members: tuple[tarfile.TarInfo, bytes]) -> str:
    """Write an archive of these members as they are; returns the digest."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    target.write_bytes(data.getvalue())
    return hashlib.sha256(data.getvalue()).hexdigest()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> Any:
    """A member of an archive, without content."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info, b""

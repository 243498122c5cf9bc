"""A sandboxed command of a workspace sees nothing of the others, nor of the server's records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from handrail.protocol import path_uri
from handrail.sandbox.intent import to_wire
from handrail.sandbox.profile import Access, Entry, Intent
from tests.server.workspaces.support import create, options, path_of, ran
from tests.support.clients import Refused, b64, dialled
from tests.support.servers import server_process


def sandbox(made: dict[str, Any], *named: Path) -> dict[str, Any]:
    """All may be read, some by name; the workspace and its TMPDIR may be written."""
    root, temporary = (path_uri.to_path(made[name]) for name in ("root", "temporary"))
    entries = (
        Entry(Access.READ, path=b"/"),
        Entry(Access.WRITE, path=root),
        Entry(Access.WRITE, path=temporary),
        *(Entry(Access.READ, path=bytes(path)) for path in named),
    )
    wire: dict[str, Any] = to_wire(Intent(entries=entries, workspace_roots=(root,), cwd=root))
    return wire


async def test_neighbours_are_strangers(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    env = {"RAY_ADDRESS": "ray", "HANDRAIL_THING": "ours"}
    with server_process(tmp_path / "s", *options(directory), env=env) as server:
        async with dialled(server.url) as first, dialled(server.url) as second:
            one = await create(first, "one", enter=True)
            two = await create(second, "two", enter=True)
            for place in ("root", "temporary"):
                (path_of(one[place]) / "secret").write_text("s3cret")
            root, temporary = path_of(one["root"]), path_of(one["temporary"])
            held = {"sandbox": sandbox(two)}
            for number, command in enumerate(
                (
                    f"cat {root}/secret",
                    f"cat {temporary}/secret",
                    f"touch {root}/x",
                    f"touch {temporary}/x",
                    f"ls {root.parent.parent}",
                    f"ls {directory}/records",
                    f"ls {directory}",
                    f"cat {directory}/incarnation",
                    f"touch {directory}/stamp",
                    f"mkdir {directory}/w/made",
                )
            ):
                script = f"{command} && echo reached"
                said = await ran(second, f"p{number}", two, script, **held)
                assert b"reached" not in said, command
                assert b"s3cret" not in said, command
            script = "echo a > here; echo b > $TMPDIR/there; cat here $TMPDIR/there; echo $TMPDIR"
            assert await ran(second, "own", two, script, **held) == (
                f"a\nb\n{path_of(two['temporary'])}\n".encode()
            )
            everything = {
                "inherit": "all",
                "ignoreDefaultExcludes": True,
                "exclude": [],
                "set": {},
                "includeOnly": [],
            }
            said = await ran(second, "env", two, "env", envPolicy=everything)
            assert b"RAY_" not in said
            assert b"HANDRAIL_" not in said
            written = {"path": f"{two['root']}/file", "dataBase64": b64(b"f"), **held}
            await second.call("fs/writeFile", written)
            assert (path_of(two["root"]) / "file").read_bytes() == b"f"
            with pytest.raises(Refused):
                await second.call("fs/readFile", {"path": f"{one['root']}/secret", **held})
            # What the profile names beside workspaces stays covered.
            named = {"sandbox": sandbox(two, directory / "records")}
            said = await ran(second, "named", two, f"ls {directory}/records", **named)
            assert b"one" not in said

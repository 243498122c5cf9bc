"""``fs/*`` under a sandbox: what a command inside would see, from one warm helper."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from handrail import private_places
from handrail.keeper.proc_children import descendants_of
from handrail.sandboxed_files.pool import MOST_HELPERS
from tests.support.clients import Client, b64, dialled
from tests.support.eventually import spin
from tests.support.processes import children, until_ended
from tests.support.servers import Served, server_process, serving

READ_ONLY = (-32603, "Read-only file system (os error 30)")


@pytest.fixture(autouse=True)
def _no_other_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """State directories of other tests' servers come and go, and each changes the plans."""
    monkeypatch.setattr(private_places, "remembered", list)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    (made / "hidden").mkdir(parents=True)
    (made / "hidden" / "secret").write_text("TOPSECRET")
    (made / "file").write_text("content")
    (made / "link").symlink_to("file")
    return made


def uri(path: Path | str) -> str:
    return Path(path).as_uri()


def sandbox(workspace: Path) -> dict[str, Any]:
    """Everything readable, the workspace writable, one directory of it hidden."""

    def special(kind: str) -> dict[str, Any]:
        return {"type": "special", "value": {"kind": kind}}

    entries = [
        {"path": special("root"), "access": "read"},
        {"path": special("project_roots"), "access": "write"},
        {"path": {"type": "path", "path": uri(workspace / "hidden")}, "access": "deny"},
    ]
    return {
        "permissions": {
            "type": "managed",
            "file_system": {"type": "restricted", "entries": entries},
            "network": "restricted",
        },
        "cwd": uri(workspace),
        "workspaceRoots": [uri(workspace)],
        "windowsSandboxLevel": "disabled",
    }


class Files:
    """The calls of one client, all under the same profile."""

    def __init__(self, client: Client, workspace: Path) -> None:
        self.client = client
        self.sandbox = sandbox(workspace)

    async def call(self, method: str, path: Path | str, **members: Any) -> Any:
        return await self.client.call(
            f"fs/{method}", path=uri(path), sandbox=self.sandbox, **members
        )

    async def refused(self, method: str, path: Path | str, **members: Any) -> tuple[int, str]:
        return await self.client.refused(
            f"fs/{method}", path=uri(path), sandbox=self.sandbox, **members
        )


def helpers(served: Served) -> set[int]:
    """The processes of the keeper: the outermost of each helper."""
    return children(served.server.launcher.keeper_pid)


async def test_every_call_works_inside(workspace: Path) -> None:
    async with serving() as served:
        files = Files(await served.client(), workspace)
        plain = await files.client.call("fs/getMetadata", path=uri(workspace / "file"))
        assert await files.call("getMetadata", workspace / "file") == plain
        found = await files.call("getMetadata", workspace / "link")
        assert (found["isSymlink"], found["isFile"], found["size"]) == (True, True, 7)
        assert await files.call("canonicalize", workspace / "link") == {
            "path": uri(workspace / "file")
        }
        assert (
            base64.b64decode((await files.call("readFile", workspace / "file"))["dataBase64"])
            == b"content"
        )
        await files.call("createDirectory", workspace / "a" / "b")
        await files.call("writeFile", workspace / "a" / "new", dataBase64=b64(b"\0\xff new"))
        assert (workspace / "a" / "new").read_bytes() == b"\0\xff new"
        await files.client.call(
            "fs/copy",
            sourcePath=uri(workspace / "a"),
            destinationPath=uri(workspace / "c"),
            recursive=True,
            sandbox=files.sandbox,
        )
        assert (workspace / "c" / "new").read_bytes() == b"\0\xff new"
        listed = await files.call("readDirectory", workspace / "c")
        assert sorted(listed["entries"], key=lambda e: e["fileName"]) == [
            {"fileName": "b", "isDirectory": True, "isFile": False},
            {"fileName": "new", "isDirectory": False, "isFile": True},
        ]
        bounds = {
            "maxDepth": 8,
            "maxDirectories": 100,
            "maxEntries": 100,
            "followDirectorySymlinks": False,
        }
        walked = await files.call("walk", workspace / "c", options=bounds)
        assert walked == await files.client.call(
            "fs/walk", path=uri(workspace / "c"), options=bounds
        )
        await files.call("remove", workspace / "c")
        assert not (workspace / "c").exists()
        await spin(lambda: len(helpers(served)) == 2)  # one to look, one to change


async def test_nothing_outside_is_changed_and_nothing_hidden_is_seen(
    workspace: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.write_text("as it was")
    hidden = workspace / "hidden" / "secret"
    async with serving() as served:
        files = Files(await served.client(), workspace)
        assert await files.refused("writeFile", tmp_path / "new", dataBase64="") == READ_ONLY
        assert await files.refused("writeFile", outside, dataBase64="") == READ_ONLY
        assert await files.refused("remove", outside) == READ_ONLY
        assert await files.refused("createDirectory", tmp_path / "made") == READ_ONLY
        assert await files.refused("open", outside, handleId="h", mode="replace") == READ_ONLY
        for method in ("readFile", "getMetadata", "canonicalize"):
            code, _ = await files.refused(method, hidden)
            assert code in (-32600, -32004)  # no permission, or nothing there
        code, _ = await files.refused("readDirectory", hidden.parent)
        assert code == -32600
        (workspace / "way").symlink_to(hidden)
        assert (await files.refused("readFile", workspace / "way"))[0] in (-32600, -32004)
        copied = await files.client.refused(
            "fs/copy",
            sourcePath=uri(workspace / "file"),
            destinationPath=uri(tmp_path / "copy"),
            recursive=False,
            sandbox=files.sandbox,
        )
        assert copied == READ_ONLY
    assert outside.read_text() == "as it was"
    assert set(os.listdir(tmp_path)) == {"workspace", "outside"}


async def test_errors_have_the_codes_and_texts_of_plain_calls(workspace: Path) -> None:
    async with serving() as served:
        files = Files(await served.client(), workspace)
        for method, path, members in (
            ("readFile", workspace / "nosuch", {}),
            ("readFile", workspace, {}),
            ("getMetadata", workspace / "link", {"followSymlinks": False}),
            ("getMetadata", workspace / "file" / "x", {}),
            ("writeFile", workspace / "no" / "x", {"dataBase64": ""}),
            ("writeFile", workspace / "x", {"dataBase64": "!"}),
            ("createDirectory", workspace / "file", {"recursive": False}),
            ("remove", workspace / "nosuch", {"force": False}),
            ("readBlock", workspace, {"handleId": "nosuch", "offset": 0, "len": 1}),
        ):
            sandboxed = await files.refused(method, path, **members)
            plain = await files.client.refused(f"fs/{method}", path=uri(path), **members)
            assert sandboxed == plain


async def test_a_copy_of_a_set_id_program_has_no_such_bit(workspace: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    program = outside / "program"
    program.write_text("content")
    program.chmod(0o6755)
    async with serving() as served:
        client = await served.client()
        for source, target, recursive in (
            (program, workspace / "copy", False),
            (program, workspace / "file", False),
            (outside, workspace / "tree", True),
        ):
            members = {"sourcePath": uri(source), "destinationPath": uri(target)}
            await client.call("fs/copy", recursive=recursive, sandbox=sandbox(workspace), **members)
    for copy in (workspace / "copy", workspace / "file", workspace / "tree" / "program"):
        assert copy.read_text() == "content"
        assert copy.stat().st_mode & 0o7777 == 0o755


async def test_a_large_file_goes_in_and_out(workspace: Path) -> None:
    content = os.urandom(3 * 1024 * 1024) * 7 + b"end"
    async with serving() as served:
        files = Files(await served.client(), workspace)
        await files.call("writeFile", workspace / "large", dataBase64=b64(content))
        assert (workspace / "large").read_bytes() == content
        for size in (len(content), 5_000_000, 768 * 1024, 768 * 1024 + 1, 1, 0):
            (workspace / "large").write_bytes(content[:size])
            answer = await files.call("readFile", workspace / "large")
            assert base64.b64decode(answer["dataBase64"]) == content[:size]


async def test_names_that_are_no_text_survive(workspace: Path) -> None:
    name = os.fsencode(workspace) + b"/\xff\xfe"
    os.mknod(name)
    async with serving() as served:
        files = Files(await served.client(), workspace)
        found = (await files.call("readDirectory", workspace))["entries"]
        (strange,) = [entry for entry in found if "uri" in entry]
        answer = await files.client.call(
            "fs/canonicalize", path=strange["uri"], sandbox=files.sandbox
        )
        assert answer == {"path": strange["uri"]}


async def test_handles_live_in_the_helper(workspace: Path) -> None:
    async with serving() as served:
        files = Files(await served.client(), workspace)
        call, refused = files.client.call, files.client.refused
        name = "x" * 32
        await files.call("open", workspace / "file", handleId=name)
        assert await call("fs/readBlock", handleId=name, offset=3, len=100) == {
            "chunk": b64(b"tent"),
            "eof": True,
        }
        exists = (-32600, f"file handle `{name}` already exists")
        assert await files.refused("open", workspace / "file", handleId=name) == exists
        assert await refused("fs/open", path=uri(workspace / "file"), handleId=name) == exists
        assert await files.refused("open", workspace / "file", handleId="y" * 33) == (
            -32600,
            "file handle ID must not exceed 32 bytes",
        )
        assert await refused("fs/readBlock", handleId=name, offset=0, len=0) == (
            -32600,
            "file read block length must be between 1 and 1048576",
        )
        assert (await refused("fs/writeBlock", handleId=name, offset=0, chunk="QQ=="))[0] == -32603
        await call("fs/close", handleId=name)
        await call("fs/close", handleId=name)
        await files.call("open", workspace / "out", handleId="w", mode="replace")
        await call("fs/writeBlock", handleId="w", offset=2, chunk=b64(b"later"))
        await call("fs/writeBlock", handleId="w", offset=0, chunk=b64(b"12"))
        await call("fs/close", handleId="w")
        assert (workspace / "out").read_bytes() == b"12later"


async def test_plain_and_sandboxed_handles_share_one_bound(workspace: Path) -> None:
    async with serving() as served:
        files = Files(await served.client(), workspace)
        for number in range(64):
            await files.call("open", workspace / "file", handleId=f"c{number}")
            await files.client.call("fs/open", path=uri(workspace / "file"), handleId=f"p{number}")
        full = (-32600, "at most 128 file handles may be open per connection")
        assert await files.refused("open", workspace / "file", handleId="more") == full
        plain = await files.client.refused("fs/open", path=uri(workspace / "file"), handleId="more")
        assert plain == full


async def test_calls_do_not_wait_for_each_other(workspace: Path) -> None:
    async with serving() as served:
        files = Files(await served.client(), workspace)
        many = [files.call("getMetadata", workspace / "file") for _ in range(60)]
        large = files.call("writeFile", workspace / "large", dataBase64=b64(bytes(4_000_000)))
        assert len(await asyncio.gather(*many, large)) == 61
        await spin(lambda: len(helpers(served)) <= 2)


async def test_a_helper_that_died_is_replaced(workspace: Path) -> None:
    async with serving() as served:
        files = Files(await served.client(), workspace)
        await files.call("open", workspace / "file", handleId="h")
        await spin(lambda: len(helpers(served)) == 1)
        (helper,) = helpers(served)
        os.kill(helper, signal.SIGKILL)
        connection = served.connection(files.client)
        await spin(lambda: not connection.files.helper_of("h").usable)  # type: ignore[union-attr]
        assert (await files.call("getMetadata", workspace / "file"))["size"] == 7
        assert await files.client.refused("fs/readBlock", handleId="h", offset=0, len=1) == (
            -32004,
            "unknown file handle `h`",
        )
        await spin(lambda: helper not in helpers(served))


async def test_looking_needs_no_helper_once_its_mounts_are_known(workspace: Path) -> None:
    async with serving() as served:
        files = Files(await served.client(), workspace)
        (workspace / "secret").symlink_to("hidden/secret")
        await files.call("readDirectory", workspace)
        (outermost,) = helpers(served)
        stopped = descendants_of(outermost)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            assert (await files.call("getMetadata", workspace / "file"))["size"] == 7
            read = await files.call("readFile", workspace / "file")
            assert base64.b64decode(read["dataBase64"]) == b"content"
            found = await files.call("canonicalize", workspace / "file")
            assert found == {"path": uri(workspace / "file")}
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        for hidden in ("hidden/secret", "secret"):
            assert (await files.refused("readFile", workspace / hidden))[0] in (-32004, -32600)


async def test_changing_one_name_needs_no_helper_once_its_mounts_are_known(workspace: Path) -> None:
    async with serving() as served:
        files = Files(await served.client(), workspace)
        made = workspace / "made"
        await files.call("createDirectory", made, recursive=False)
        await files.call("readDirectory", made)
        stopped = {pid for one in helpers(served) for pid in descendants_of(one)}
        assert stopped
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            text = base64.b64encode(b"new").decode()
            await files.call("writeFile", made / "file", dataBase64=text)
            await files.call("writeFile", made / "file", dataBase64=text)
            await files.client.call(
                "fs/copy",
                sourcePath=uri(made / "file"),
                destinationPath=uri(made / "copy"),
                recursive=False,
                sandbox=files.sandbox,
            )
            assert (made / "copy").read_bytes() == b"new"
            await files.call("remove", made / "file")
            found = await files.call("readDirectory", made)
            (entry,) = found["entries"]
            assert entry == {"fileName": "copy", "isDirectory": False, "isFile": True}
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        for place in (workspace / ".git" / "config", workspace / "hidden" / "file"):
            assert (await files.refused("writeFile", place, dataBase64=text))[0] != 0
            assert not place.exists()


async def test_what_another_user_keeps_is_not_read_by_root(workspace: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root passes over the modes of files")
    (workspace / "file").chmod(0o600)
    os.chown(workspace / "file", 12345, 12345)
    async with serving() as served:
        files = Files(await served.client(), workspace)
        for _ in range(3):
            assert (await files.refused("readFile", workspace / "file"))[0] == -32600
        plain = await files.client.call("fs/readFile", path=uri(workspace / "file"))
        assert base64.b64decode(plain["dataBase64"]) == b"content"


async def test_a_helper_ends_with_its_connection(workspace: Path) -> None:
    async with serving() as served:
        one, other = (
            Files(await served.client(), workspace),
            Files(await served.client(), workspace),
        )
        await one.call("getMetadata", workspace)
        await other.call("getMetadata", workspace)
        await spin(lambda: len(helpers(served)) == 2)
        one.client.abort()
        await spin(lambda: len(helpers(served)) == 1)
        assert (await other.call("getMetadata", workspace))["isDirectory"]


async def test_a_profile_without_any_program_still_serves_files(workspace: Path) -> None:
    """No shell could run there; the helper brings what it needs, to be read and no more."""
    entries = [{"path": {"type": "path", "path": uri(workspace)}, "access": "write"}]
    async with serving() as served:
        files = Files(await served.client(), workspace)
        files.sandbox["permissions"]["file_system"]["entries"] = entries
        assert (await files.call("getMetadata", workspace / "file"))["size"] == 7
        await files.call("writeFile", workspace / "new", dataBase64=b64(b"new"))
        assert (workspace / "new").read_bytes() == b"new"
        for place in ("/etc/passwd", "/usr/bin/env", "/root/.profile"):
            assert (await files.refused("readFile", place))[0] in (-32004, -32600)
        code, _ = await files.refused("remove", os.__file__)
        assert code in (-32603, -32600)


async def test_a_profile_that_is_not_understood_is_refused(workspace: Path) -> None:
    async with serving() as served:
        files = Files(await served.client(), workspace)
        good = files.sandbox
        for bad in (
            {**good, "permissions": {"type": "nosuch"}},
            {**good, "workspaceRoots": ["http://x"]},
            {k: v for k, v in good.items() if k != "windowsSandboxLevel"},
        ):
            files.sandbox = bad
            assert (await files.refused("readFile", workspace / "file"))[0] == -32602
        files.sandbox = {**good, "permissions": {"type": "disabled"}}
        assert (await files.call("getMetadata", workspace / "hidden" / "secret"))["size"] == 9
        assert helpers(served) == set()


async def test_a_repository_made_meanwhile_is_protected(workspace: Path) -> None:
    async with serving() as served:
        files = Files(await served.client(), workspace)
        made = workspace / "sub" / ".git"
        await files.call("createDirectory", made.parent)
        made.mkdir()
        assert await files.refused("createDirectory", made / "hooks") == READ_ONLY
        assert await files.refused("writeFile", made / "config", dataBase64="") == READ_ONLY


async def test_a_root_that_was_exchanged_is_another_root(workspace: Path) -> None:
    async with serving() as served:
        files = Files(await served.client(), workspace)
        await files.call("writeFile", workspace / "new", dataBase64="")
        os.rename(workspace, workspace.with_name("old"))
        os.makedirs(workspace / "hidden")
        assert (await files.refused("readFile", workspace / "file"))[0] == -32004
        await files.call("writeFile", workspace / "newer", dataBase64="")
    assert sorted(os.listdir(workspace)) == ["hidden", "newer"]


async def test_words_of_one_session_are_not_remembered_for_another(workspace: Path) -> None:
    async with serving() as served:
        first = Files(await served.client(), workspace)
        second = Files(await served.client(), workspace)
        own = (await first.client.call("session/temporary"))["path"]
        first.sandbox["privateTmp"] = second.sandbox["privateTmp"] = own
        for _ in range(3):
            assert (await first.call("getMetadata", workspace / "file"))["isFile"]
            code, text = await second.refused("getMetadata", workspace / "file")
            assert (code, "not the directory of this session" in text) == (-32602, True)


async def test_a_private_place_is_covered_at_once(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_places, "_added", dict(private_places._added))
    place = tmp_path / "place"
    place.mkdir()
    (place / "token").write_text("TOPSECRET")
    async with serving() as served:
        files = Files(await served.client(), workspace)
        assert (await files.call("getMetadata", place / "token"))["size"] == 9
        private_places.add(str(place))
        assert (await files.refused("getMetadata", place / "token"))[0] in (-32004, -32600)


async def test_nothing_is_made_up_in_a_workspace(workspace: Path) -> None:
    before = sorted(os.listdir(workspace))
    async with serving() as served:
        files = Files(await served.client(), workspace)
        await files.call("readFile", workspace / "file")
        await files.call("readDirectory", workspace)
        assert sorted(os.listdir(workspace)) == before
        await files.call("writeFile", workspace / "file", dataBase64=b64(b"new"))
        assert sorted(os.listdir(workspace)) == before
        await spin(lambda: len(helpers(served)) == 2)
        await files.call("open", workspace / "file", handleId="h", mode="replace")
        await files.client.call("fs/writeBlock", handleId="h", offset=0, chunk=b64(b"newer"))
        await files.client.call("fs/close", handleId="h")
        assert (workspace / "file").read_bytes() == b"newer"
        for name in (".git", ".codex"):
            assert await files.refused("createDirectory", workspace / name / "x") == READ_ONLY
    assert sorted(os.listdir(workspace)) == before


async def test_helpers_are_bounded(workspace: Path) -> None:
    async with serving() as served:
        files = Files(await served.client(), workspace)
        entries = files.sandbox["permissions"]["file_system"]["entries"]
        for number in range(MOST_HELPERS + 2):
            place = workspace / f"d{number}"
            os.mkdir(place)
            entries[-1]["path"]["path"] = uri(place)
            assert (await files.refused("readDirectory", place))[0] == -32600
            if number == 0:
                await files.call("open", workspace / "file", handleId="h")
        await spin(lambda: len(helpers(served)) <= MOST_HELPERS)
        # The one with a handle was used longest ago, and is still there.
        assert (await files.client.call("fs/readBlock", handleId="h", offset=0, len=1))["chunk"]


async def test_a_helper_ends_with_its_server(workspace: Path, tmp_path: Path) -> None:
    with server_process(tmp_path / "state", "--orphan-ttl", "0") as server:
        async with dialled(server.url) as client:
            files = Files(client, workspace)
            await files.call("writeFile", workspace / "new", dataBase64="")
            (helper, *_) = children(server.keeper())
            server.process.kill()
            await until_ended(helper)

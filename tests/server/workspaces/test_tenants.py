"""A signed token speaks for one tenant: it sees and takes no workspace of another."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import jwt
import pytest

from tests.server.workspaces.support import create, listed, options, packed, path_of
from tests.support.clients import Refused, dialled
from tests.support.servers import server_process

SECRET = b"0123456789abcdef" * 4


def bearer(subject: str) -> dict[str, str]:
    """A token; without a subject it has all tenants."""
    claims = {"exp": int(time.time()) + 600, **({"sub": subject} if subject else {})}
    return {"Authorization": f"Bearer {jwt.encode(claims, SECRET, 'HS256')}"}


def packed_with(directory: Path, text: str) -> str:
    """An archive ``o.tar`` with one file; its digest."""
    source = directory / "other"
    source.mkdir()
    (source / "file").write_text(text)
    return packed(source, directory / "o.tar")


async def test_a_tenant_has_its_own_workspaces_alone(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    signed = ("--ws-auth", "signed-bearer-token", "--ws-shared-secret-file", str(secret))
    source = tmp_path / "source"
    source.mkdir()
    digest = packed(source, tmp_path / "t.tar")
    with server_process(tmp_path / "s", *options(tmp_path / "d"), *signed) as server:
        async with (
            dialled(server.url, additional_headers=bearer("ann")) as ann,
            dialled(server.url, additional_headers=bearer("bob")) as bob,
            dialled(server.url, additional_headers=bearer("")) as every,
        ):
            await create(ann, "a")
            await create(bob, "b", tenant="bob")
            with pytest.raises(Refused) as other:
                await create(bob, "c", tenant="ann")
            assert other.value.data == {"what": "tenant"}
            assert [one["tenant"] for one in (await listed(ann)).values()] == ["ann"]
            assert list(await listed(bob, owner="o")) == ["b"]
            assert sorted(await listed(every)) == ["a", "b"]
            for method in ("workspace/adopt", "workspace/enter", "workspace/release"):
                with pytest.raises(Refused) as gone:
                    await bob.call(method, workspaceId="a", owner="o")
                assert gone.value.data == {"what": "gone"}, method
            with pytest.raises(Refused) as taken:  # the id is, and no more is said
                await create(bob, "a")
            assert taken.value.data == {"what": "owner"}
            assert (await ann.call("workspace/adopt", workspaceId="a", owner="p"))[
                "tenant"
            ] == "ann"
            # What one tenant prepared is handed to no other.
            await ann.call("template/add", digest=digest, path=(tmp_path / "t.tar").as_uri())
            prepare = ["sh", "-c", "echo ann > prepared"]
            pool = {"template": digest, "size": 1, "prepare": prepare}
            assert await ann.call("workspace/pool", pool) == {"ready": 1}
            assert (await bob.call("workspace/list"))["pools"] == {}
            cold = await create(bob, template=digest)
            assert not cold["warm"]
            assert not (path_of(cold["root"]) / "prepared").exists()
            await bob.call("workspace/pool", template=digest, size=0)
            assert (await ann.call("workspace/list"))["pools"] == {digest: 1}
            warm = await create(ann, template=digest)
            assert warm["warm"]
            assert (path_of(warm["root"]) / "prepared").read_text() == "ann\n"
            await ann.call("workspace/pool", template=digest, size=0)
            # A digest is enough to have the files, so the templates of others are not shown.
            other = packed_with(tmp_path, "ann's")
            await ann.call("template/add", digest=other, path=(tmp_path / "o.tar").as_uri())
            assert (await ann.call("workspace/list"))["templates"] == sorted([digest, other])
            assert (await bob.call("workspace/list"))["templates"] == [digest], "it uses that one"
            assert len((await every.call("workspace/list"))["templates"]) == 2
            # An owner of the same name is another one, whose leases go on running.
            await bob.call("workspace/hold", owner="p")
            assert not (await listed(ann))["a"]["held"]
            await every.call("workspace/hold", owner="p")
            assert (await listed(ann))["a"]["held"]
            counted = await asyncio.to_thread(server.metrics, bearer(""))
            assert counted['handrail_workspaces{state="held",tenant="ann"}'] == 1
            assert counted['handrail_workspaces{state="unheld",tenant="ann"}'] == 1
            assert counted['handrail_workspaces{state="unheld",tenant="bob"}'] == 2
            for tenant in ("ann", "bob"):
                own = await asyncio.to_thread(server.metrics, bearer(tenant))
                assert {name for name in own if "tenant=" in name} == {
                    name for name in counted if f'tenant="{tenant}"' in name
                }
            assert counted["handrail_workspace_templates"] == 2
            made = 'handrail_workspace_create_duration_seconds_count{kind="%s"}'
            assert [counted[made % kind] for kind in ("empty", "copied", "warm")] == [2, 1, 1]

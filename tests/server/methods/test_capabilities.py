"""``capabilityRoots/discoverV1`` on trees in a temporary directory."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from handrail.errors import RpcError
from handrail.filesystem import walk
from handrail.filesystem.pool import FilePool
from handrail.protocol import codec
from handrail.protocol.capability import DiscoverRootsParams
from handrail.server.methods import capabilities
from handrail.server.methods.capabilities import discover_roots

MANIFEST = ".codex-plugin/plugin.json"
Tree = Mapping[str, str | bytes]


def grow(root: Path, tree: Tree) -> str:
    """Write files below a directory; gives its URI."""
    for name, content in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    root.mkdir(exist_ok=True)
    return root.as_uri()


async def discover_all(*roots: dict[str, Any]) -> list[dict[str, Any]]:
    pool = FilePool()
    try:
        conn: Any = SimpleNamespace(files=SimpleNamespace(pool=pool))
        params = codec.convert({"roots": list(roots)}, DiscoverRootsParams)
        answer = await discover_roots(conn, params)
    finally:
        pool.close()
    found: list[dict[str, Any]] = json.loads(b"".join(answer.parts))["roots"]
    return found


async def discover(uri: str) -> dict[str, Any]:
    (found,) = await discover_all({"id": "i", "path": uri})
    return found


def names(uri: str, files: list[dict[str, Any] | None]) -> list[str | None]:
    """Paths relative to the root."""
    return [None if file is None else file["path"].removeprefix(uri + "/") for file in files]


def skills(uri: str, found: dict[str, Any]) -> list[str | None]:
    return names(uri, [skill["instructions"] for skill in found["skills"]])


async def test_a_plugin_with_a_skill(tmp_path: Path) -> None:
    tree = {
        MANIFEST: '{"name":"x"}',
        ".mcp.json": "{}",
        ".app.json": "[]",
        "skills/s/SKILL.md": "---\nname: s\n---\r\nhé",
        "skills/s/agents/openai.yaml": "a: 1",
    }
    uri = grow(tmp_path, tree)

    def file(name: str) -> dict[str, str]:
        return {"path": f"{uri}/{name}", "contents": tree[name]}

    assert await discover(uri) == {
        "id": "i",
        "path": uri,
        "plugin": {
            "manifest": file(MANIFEST),
            "mcpConfig": file(".mcp.json"),
            "appsConfig": file(".app.json"),
        },
        "skills": [
            {
                "instructions": file("skills/s/SKILL.md"),
                "metadata": file("skills/s/agents/openai.yaml"),
            }
        ],
        "namespaceManifests": [file(MANIFEST)],
        "warnings": [],
        "error": None,
    }


async def test_roots_fail_alone_and_answers_keep_their_order(tmp_path: Path) -> None:
    uri = grow(tmp_path, {"file": "x", "good/SKILL.md": "s"})
    found = await discover_all(
        {"id": "1", "path": f"{uri}/none"},
        {"id": "2", "path": f"{uri}/file"},
        {"id": "3", "path": f"{uri}/good"},
        {"id": "4", "path": "file://host/x"},
    )
    assert [root["id"] for root in found] == ["1", "2", "3", "4"]
    assert [root["error"] for root in found] == [
        f"failed to inspect capability root {uri}/none: No such file or directory (os error 2)",
        f"capability root {uri}/file is not a directory",
        None,
        "failed to inspect capability root file://host/x: 'file://host/x' is invalid on 'linux'",
    ]
    assert len(found[2]["skills"]) == 1


async def test_a_request_without_roots_is_answered_without_any() -> None:
    assert await discover_all() == []


@pytest.mark.parametrize(
    ("roots", "code"),
    [
        ([{"id": "a", "path": "/tmp"}], -32602),
        ([{"id": "a", "path": "http://x/"}], -32602),
        ([{"id": "a"}], -32602),
        (
            [{"id": "a", "path": "file:///", "sandbox": {"permissions": {"type": "managed"}}}],
            -32602,
        ),
        ([{"id": "a", "path": "file:///none"}] * 129, -32600),
    ],
)
async def test_refusals(roots: list[dict[str, Any]], code: int) -> None:
    with pytest.raises(RpcError) as caught:
        await discover_all(*roots)
    assert caught.value.code == code


# --- manifests and their companions ---------------------------------------------------------------


async def test_the_first_manifest_that_can_be_read_is_the_plugins(tmp_path: Path) -> None:
    uri = grow(
        tmp_path,
        {
            MANIFEST: b"\xff",
            ".claude-plugin/plugin.json": "{}",
            ".cursor-plugin/plugin.json": "{}",
        },
    )
    found = await discover(uri)
    assert names(uri, [found["plugin"]["manifest"]]) == [".claude-plugin/plugin.json"]
    assert names(uri, found["namespaceManifests"]) == [".claude-plugin/plugin.json"]
    why = "is not UTF-8: invalid utf-8 sequence of 1 bytes from index 0"
    assert found["warnings"] == [f"capability file {uri}/{MANIFEST} {why}"]


START = "path must start with `./`"
BELOW = "path must remain below the capability root"


@pytest.mark.parametrize(
    ("value", "mcp", "apps", "wrong"),
    [
        ('"./x.json"', "x.json", "x.json", None),
        ('"././x.json/"', "x.json", "x.json", None),
        ('"./none.json"', None, None, None),
        ('"./d"', None, None, None),
        ('"x.json"', ".mcp.json", ".app.json", START),
        ('""', ".mcp.json", ".app.json", START),
        ('"./"', ".mcp.json", ".app.json", BELOW),
        ('".//x.json"', ".mcp.json", ".app.json", BELOW),
        ('"./d/../x.json"', ".mcp.json", ".app.json", BELOW),
        ('"./x\\u0000"', ".mcp.json", ".app.json", BELOW),
        ('{"inline":{}}', None, ".app.json", None),
        ("null", ".mcp.json", ".app.json", None),
        ('["./x.json"]', ".mcp.json", ".app.json", None),
        ("3", ".mcp.json", ".app.json", None),
        ('"./\\ud800"', ".mcp.json", ".app.json", None),
        ("nonsense", ".mcp.json", ".app.json", None),
        ('1,"apps":2', ".mcp.json", ".app.json", None),
    ],
)
async def test_a_manifest_names_its_companions(
    tmp_path: Path, value: str, mcp: str | None, apps: str | None, wrong: str | None
) -> None:
    manifest = f'{{"mcpServers":{value},"apps":{value}}}'
    companions = dict.fromkeys(("x.json", "d/f", ".mcp.json", ".app.json"), "c")
    uri = grow(tmp_path, {MANIFEST: manifest, **companions})
    found = await discover(uri)
    plugin = found["plugin"]
    assert names(uri, [plugin["mcpConfig"], plugin["appsConfig"]]) == [mcp, apps]
    fields = ("mcpServers", "apps") if wrong else ()
    assert found["warnings"] == [
        f"ignoring {field} in {uri}/{MANIFEST}: {wrong}" for field in fields
    ]


async def test_namespaces_are_the_directories_with_a_manifest(tmp_path: Path) -> None:
    uri = grow(
        tmp_path,
        {
            f"a-b/{MANIFEST}": "1",
            f"a/{MANIFEST}": "2",
            "a/.claude-plugin/plugin.json": "not the first",
            f"a/c/{MANIFEST}": b"\xff",
            "a/c/.claude-plugin/plugin.json": "no second chance below the root",
            "b/.cursor-plugin/plugin.json": "3",
        },
    )
    found = await discover(uri)
    assert found["plugin"] is None
    # By the directories, not by the files: «a» stands before «a-b».
    assert [file["contents"] for file in found["namespaceManifests"]] == ["2", "1", "3"]


async def test_without_a_manifest_the_nearest_above_counts(tmp_path: Path) -> None:
    top = grow(
        tmp_path,
        {MANIFEST: "top", f"a/{MANIFEST}": "near", "a/b/c/SKILL.md": "s", f"x/{MANIFEST}": b"\xff"},
    )
    found = await discover(f"{top}/a/b/c")
    assert found["plugin"] is None
    assert [file["contents"] for file in found["namespaceManifests"]] == ["near"]
    found = await discover(f"{top}/x")
    assert [file["contents"] for file in found["namespaceManifests"]] == ["top"]
    assert len(found["warnings"]) == 2  # looked at as the plugin's, and as the namespace's


# --- skills --------------------------------------------------------------------------------------


async def test_skills_are_sorted_by_their_uris(tmp_path: Path) -> None:
    places = ("a", "a b", "a!b", "a-b", "Z", ".hidden", "é")
    uri = grow(tmp_path, {f"{place}/SKILL.md": "s" for place in places} | {"x/skill.md": "no"})
    found = skills(uri, await discover(uri))
    assert found == [
        f"{place}/SKILL.md" for place in ("%C3%A9", ".hidden", "Z", "a!b", "a%20b", "a-b", "a")
    ]


async def test_links_lead_to_directories_once_and_not_to_skills(tmp_path: Path) -> None:
    uri = grow(tmp_path, {"real/SKILL.md": "s", "f/x": "", "p/SKILL.md": "s"})
    os.symlink("real", tmp_path / "link")
    os.symlink("..", tmp_path / "real/up")
    os.symlink("../real/SKILL.md", tmp_path / "f/SKILL.md")
    (tmp_path / "p/agents").mkdir()
    os.symlink("../../real/SKILL.md", tmp_path / "p/agents/openai.yaml")
    os.mkfifo(tmp_path / "f/.mcp.json")
    found = await discover(uri)
    assert skills(uri, found) == ["link/SKILL.md", "p/SKILL.md"]
    assert found["skills"][1]["metadata"]["contents"] == "s"
    assert found["warnings"] == []


async def test_deep_trees_are_cut(tmp_path: Path) -> None:
    deep = ["/".join(["d"] * n + ["SKILL.md"]) for n in range(9)]
    uri = grow(tmp_path, dict.fromkeys(deep, "s"))
    found = await discover(uri)
    assert sorted(skills(uri, found), key=str) == sorted(deep[:7])
    assert found["warnings"] == []


async def test_wide_trees_are_cut_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = walk.WalkOptions(6, 3, 100, follow_directory_symlinks=True)
    monkeypatch.setattr(capabilities, "BOUNDS", bounds)
    uri = grow(tmp_path, {f"{n}/SKILL.md": "s" for n in range(4)})
    found = await discover(uri)
    assert skills(uri, found) == ["0/SKILL.md", "1/SKILL.md"]
    assert found["warnings"] == [f"capability scan reached its traversal limit (root: {uri})"]


# --- files that cannot be had ---------------------------------------------------------------------


async def test_what_cannot_be_read_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = grow(
        tmp_path,
        {
            ".codex-plugin": "a file where a directory should be",
            "a/SKILL.md": b"ab\xff",
            "b/SKILL.md": b"\xe2\x82",
            "c/SKILL.md": "s",
            "c/agents": "a file again",
        },
    )
    real = walk.walk

    def troubled(path: bytes, options: walk.WalkOptions) -> walk.WalkResult:
        result = real(path, options)
        result.errors.append(walk.WalkProblem(path + b"/d", "Permission denied (os error 13)"))
        return result

    monkeypatch.setattr(walk, "walk", troubled)
    found = await discover(uri)
    assert skills(uri, found) == ["c/SKILL.md"]
    assert [warning.replace(uri, "U") for warning in found["warnings"]] == [
        "failed to scan capability path U/d: Permission denied (os error 13)",
        f"failed to inspect capability file U/{MANIFEST}: Not a directory (os error 20)",
        "capability file U/a/SKILL.md is not UTF-8: invalid utf-8 sequence of 1 bytes from index 2",
        "capability file U/b/SKILL.md is not UTF-8: incomplete utf-8 byte sequence from index 0",
        "failed to inspect capability file U/c/agents/openai.yaml: Not a directory (os error 20)",
    ]


async def test_large_files_and_large_bundles_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capabilities, "FILE_LIMIT", 10)
    monkeypatch.setattr(capabilities, "BUNDLE_LIMIT", 24)
    sizes = (10, 11, 10, 5, 4, 1)
    uri = grow(tmp_path, {f"{n}/SKILL.md": "x" * size for n, size in enumerate(sizes)})
    found = await discover(uri)
    # What does not fit is left out, and what comes later may fit again.
    assert skills(uri, found) == ["0/SKILL.md", "2/SKILL.md", "4/SKILL.md"]
    assert found["warnings"] == [
        f"capability file {uri}/1/SKILL.md exceeds the 10-byte limit",
        "capability root bundle exceeds the 24-byte limit",
        "capability root bundle exceeds the 24-byte limit",
    ]


async def test_all_roots_together_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capabilities, "ANSWER_LIMIT", 3)
    uri = grow(tmp_path, {"SKILL.md": "xx"})
    found = await discover_all({"id": "1", "path": uri}, {"id": "2", "path": uri})
    assert [len(root["skills"]) for root in found] == [1, 0]
    assert found[1]["warnings"] == ["capability root bundle exceeds the 1-byte limit"]

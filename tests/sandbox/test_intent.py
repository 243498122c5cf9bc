"""The wire form of an intent: what is written is read back, and what is wrong is named."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from handrail.errors import UsageError
from handrail.protocol.sandbox import SandboxParams
from handrail.sandbox.intent import from_wire, to_wire
from handrail.sandbox.profile import (
    Access,
    BadIntent,
    Entry,
    Files,
    Intent,
    off,
    read_only,
    workspace_write,
)


def through_json(intent: Intent) -> Intent:
    text = msgspec.json.encode(to_wire(intent))
    return from_wire(msgspec.json.decode(text, type=SandboxParams))


@pytest.mark.parametrize(
    "intent",
    [
        Intent(),
        read_only(network=True),
        workspace_write((b"/w", b"/caf\xc3\xa9"), writable_roots=(b"/not-utf8-\xff",)),
        Intent(files=Files.UNRESTRICTED),
        Intent(files=Files.EXTERNAL, network=True),
        Intent(
            entries=(
                Entry(Access.WRITE, special="project_roots", subpath=b"a/b"),
                Entry(Access.DENY, glob="**/*.{key,pem}"),
            ),
            workspace_roots=(b"/w",),
            glob_depth=3,
            private_tmp=b"/run/own",
            cwd=b"/w/sub",
        ),
    ],
)
def test_what_is_written_is_read_back(intent: Intent) -> None:
    assert through_json(intent) == intent


def test_no_sandbox_has_a_form_too() -> None:
    assert to_wire(off())["permissions"] == {"type": "disabled"}
    assert through_json(off()).disabled


def test_what_a_server_would_not_protect_is_not_sent() -> None:
    with pytest.raises(UsageError, match="protected"):
        to_wire(Intent(protected=(b".idea",)))


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"cwd": "C:/x"}, "cwd"),
        ({"workspaceRoots": ["file:///w", "http://x"]}, "workspaceRoots"),
        ({"privateTmp": "nothing"}, "privateTmp"),
    ],
)
def test_a_bad_uri_is_named_with_its_field(members: dict[str, Any], field: str) -> None:
    given = {**to_wire(read_only()), **members}
    with pytest.raises(BadIntent) as caught:
        from_wire(msgspec.convert(given, SandboxParams))
    wrong = members[field]
    assert (caught.value.field, caught.value.uri) == (
        field,
        wrong[-1] if type(wrong) is list else wrong,
    )


def test_entries_are_checked_first() -> None:
    given: Any = {**to_wire(read_only()), "cwd": "nothing"}
    given["permissions"]["file_system"]["entries"][0]["path"] = {"type": "path", "path": "a"}
    with pytest.raises(BadIntent) as caught:
        from_wire(msgspec.convert(given, SandboxParams))
    assert caught.value.field == "path"


def test_a_search_of_no_depth_is_refused() -> None:
    wire = to_wire(Intent(glob_depth=0))
    with pytest.raises(msgspec.ValidationError, match="glob_scan_max_depth"):
        msgspec.convert(wire, SandboxParams)

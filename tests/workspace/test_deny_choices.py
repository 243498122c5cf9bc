"""Denied patterns whose only special characters are braces, against a list made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from handrail import AgentShell, FilesError, Profile, Workspace
from handrail.errors import HandrailError

#: What each pattern hides of FILES.
FILES = ("k1", "k2", "k3", "sub/k1", "sub/k3", "other/k1", ".env", "{name}")
HIDDEN = [
    ("k{1,2}", {"k1", "k2"}),
    ("{k1,k2}", {"k1", "k2"}),
    ("./k{1,2}", {"k1", "k2"}),
    ("sub/{k1,k2}", {"sub/k1"}),
    ("{sub,x}", {"sub/k1", "sub/k3"}),
    ("{sub,x}/k1", {"sub/k1"}),
    ("{sub/k1,k3}", {"sub/k1", "k3"}),
    (".{env,netrc}", {".env"}),
    ("{name}", {"{name}"}),
    ("k{1,}", {"k1"}),
    ("**/{k1,k2}", {"k1", "k2", "sub/k1", "other/k1"}),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A workspace whose own path has special characters in it."""
    root = tmp_path / "a{b,c}[d]"
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("secret")
    return root


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize(("pattern", "hidden"), HIDDEN)
def test_a_choice_hides_what_it_names(
    folder: Path, pattern: str, hidden: set[str], absolute: bool
) -> None:
    if absolute:
        folder = folder.rename(folder.parent / "plain")
        pattern = f"{folder}/{pattern}"
    with Workspace(folder, sandbox=Profile(write=(".",), deny=(pattern,))) as ws:
        said = ws.run(" ".join(["cat", *FILES, ">/dev/null"]))
        refused = {name for name in FILES if f"cat: {name}:" in said.stderr}
        assert refused == hidden
        for name in FILES:
            if name in hidden:
                with pytest.raises(FilesError):
                    ws.files.read(name)
            else:
                assert ws.files.read(name) == "secret"


async def test_an_agent_has_the_same(folder: Path) -> None:
    """Also where commands start elsewhere than in the directory of the workspace."""
    profile = Profile(write=(".",), deny=("k{1,2}",))
    async with AgentShell(Workspace(folder, sandbox=profile)) as shell:
        answer = await shell.exec_command("cat k1; cat k3", login=False)
        assert answer.text.count("secret") == 1


@pytest.mark.parametrize("pattern", ["{/etc/passwd,k1}", "k{1,2"])
def test_a_choice_that_would_hide_nothing_is_refused(folder: Path, pattern: str) -> None:
    with Workspace(folder, sandbox=Profile(write=(".",), deny=(pattern,))) as ws:
        with pytest.raises(HandrailError, match="glob pattern"):
            ws.run("cat k1")

"""``environmentConfig/read`` on files in a temporary directory, and the TOML it writes."""

from __future__ import annotations

import functools
import os
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail.errors import RpcError
from handrail.filesystem.pool import FilePool
from handrail.protocol import codec
from handrail.protocol.environment import ConfigLayer, ConfigReadParams, ConfigReadResult
from handrail.protocol.toml_text import document
from handrail.server import codex_config
from handrail.server.methods.config import read_config

PATHS = [["model"], ["foo", "bar"]]


class Machine:
    """A home, a system directory and a project, all below one directory."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.home = top / "home"
        self.system = top / "etc"
        self.project = top / "project"
        for directory in (self.home / ".codex", self.system, self.project / "sub"):
            directory.mkdir(parents=True)
        self.environment = {"HOME": str(self.home)}

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def layer(self, name: str) -> None:
        """A file whose model is named after it."""
        self.write(name, f'model="{name}"\n[foo]\nbar=1\nbaz=2\n')

    def say(self, text: str) -> None:
        """What the user's own file says."""
        self.write("home/.codex/config.toml", text)

    def trust(self, *directories: Path, level: str = "trusted", more: str = "") -> None:
        said = [f'[projects."{directory}"]\ntrust_level="{level}"\n' for directory in directories]
        self.say(more + "".join(said))

    async def read(self, place: Path | None = None, **params: Any) -> ConfigReadResult:
        pool = FilePool()
        conn: Any = SimpleNamespace(
            files=SimpleNamespace(pool=pool),
            server=SimpleNamespace(own_environment=self.environment),
        )
        asked = {
            "cwd": (place or self.project / "sub").as_uri(),
            "configPaths": PATHS,
            "requirementsPaths": [],
            **params,
        }
        try:
            return await read_config(conn, codec.convert(asked, ConfigReadParams))
        finally:
            pool.close()

    async def models(self, cwd: Path | None = None) -> list[str]:
        """Which layers there are, by their models."""
        found = await self.read(cwd, configPaths=[["model"]])
        return [tomllib.loads(layer.toml)["model"] for layer in found.config.layers]

    async def refused(self, **params: Any) -> RpcError:
        with pytest.raises(RpcError) as caught:
            await self.read(**params)
        return caught.value


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine(tmp_path)
    system = os.fsencode(found.system)
    load = functools.partial(codex_config.load, system=system)
    monkeypatch.setattr(codex_config, "load", load)
    return found


PROJECT = "project/.codex/config.toml"
SUB = "project/sub/.codex/config.toml"


# --- layers ------------------------------------------------------------------------------------


async def test_layers_stand_from_low_to_high(machine: Machine) -> None:
    machine.write("project/.git/HEAD", "")
    for name in ("etc/config.toml", PROJECT, SUB, "etc/managed_config.toml"):
        machine.layer(name)
    machine.trust(machine.project, more='model="user"\n')
    found = await machine.read()
    top = machine.top
    assert [(layer.source, layer.base_dir) for layer in found.config.layers] == [
        (f"system ({top}/etc/config.toml)", f"file://{top}/etc"),
        (f"user ({top}/home/.codex/config.toml)", f"file://{top}/home/.codex"),
        (f"project ({top}/{PROJECT})", f"file://{top}/project/.codex"),
        (f"project ({top}/{SUB})", f"file://{top}/project/sub/.codex"),
        (
            f"legacy managed_config.toml ({top}/etc/managed_config.toml)",
            f"file://{top}/etc",
        ),
    ]
    assert found.config.cloud_insertion_index == 1
    assert found.config.layers[3].toml == f'model = "{SUB}"\n\n[foo]\nbar = 1\n'
    assert found.user_home_dir == f"file://{top}/home"
    assert found.codex_home_dir == f"file://{top}/home/.codex"
    assert found.hostname == found.hostname.lower() != ""


async def test_layers_without_a_wanted_key_are_left_out_and_not_counted(machine: Machine) -> None:
    machine.write("etc/config.toml", "other = 1\n")
    machine.say('model = "user"\n')
    found = await machine.read()
    assert len(found.config.layers) == 1
    assert found.config.cloud_insertion_index == 0
    assert (found.requirements.layers, found.requirements.cloud_insertion_index) == ([], 0)


async def test_requirements_are_the_systems_and_what_the_managed_file_implies(
    machine: Machine,
) -> None:
    machine.write("etc/requirements.toml", "allowed_sandbox_modes = ['x']\n")
    machine.write(
        "etc/managed_config.toml",
        "sandbox_mode='workspace-write'\napproval_policy='on-failure'\n"
        "approvals_reviewer='auto_review'\n",
    )
    names = ("allowed_sandbox_modes", "allowed_approval_policies", "allowed_approvals_reviewers")
    found = await machine.read(configPaths=[], requirementsPaths=[[name] for name in names])
    assert found.config.layers == []
    etc = f"{machine.top}/etc"
    assert found.requirements.layers == [
        ConfigLayer(
            source=f"{etc}/requirements.toml",
            base_dir=f"file://{etc}",
            toml='allowed_sandbox_modes = ["x"]\n',
        ),
        ConfigLayer(
            source=f"{etc}/managed_config.toml",
            base_dir=f"file://{etc}",
            toml='allowed_approval_policies = ["on-request"]\n'
            'allowed_approvals_reviewers = ["auto_review", "user"]\n'
            'allowed_sandbox_modes = ["read-only", "workspace-write"]\n',
        ),
    ]
    assert found.requirements.cloud_insertion_index == 1


async def test_a_granular_policy_is_filled_up(machine: Machine) -> None:
    policy = "{granular={mcp_elicitations=true,rules=true,sandbox_approval=false}}"
    machine.write("etc/managed_config.toml", f"approval_policy={policy}")
    found = await machine.read(configPaths=[], requirementsPaths=[["allowed_approval_policies"]])
    assert found.requirements.layers[0].toml == (
        "[[allowed_approval_policies]]\n\n[allowed_approval_policies.granular]\n"
        "sandbox_approval = false\nrules = true\nskill_approval = false\n"
        "request_permissions = false\nmcp_elicitations = true\n"
    )
    machine.write("etc/managed_config.toml", "approval_policy={granular={rules=true}}")
    assert "missing field `sandbox_approval`" in str(await machine.refused())


async def test_the_peers_home_can_be_elsewhere(machine: Machine) -> None:
    machine.layer("elsewhere/config.toml")
    os.symlink("elsewhere", machine.top / "link")
    machine.environment["CODEX_HOME"] = f"{machine.top}/link"
    found = await machine.read()
    assert found.codex_home_dir == f"file://{machine.top}/elsewhere"
    assert len(found.config.layers) == 1
    machine.environment["CODEX_HOME"] = "/none"
    error = await machine.refused()
    assert (error.code, str(error)) == (
        -32603,
        'failed to find Codex home: CODEX_HOME points to "/none", but that path does not exist',
    )


# --- projects ----------------------------------------------------------------------------------


async def test_only_trusted_directories_speak(machine: Machine) -> None:
    machine.write("project/.git/HEAD", "")
    machine.layer(PROJECT)
    machine.layer(SUB)
    project, sub = machine.project, machine.project / "sub"
    assert await machine.models() == []
    machine.trust(project)
    assert await machine.models() == [PROJECT, SUB]
    assert await machine.models(project) == [PROJECT]
    machine.trust(project, level="untrusted")
    assert await machine.models() == []
    machine.trust(sub)
    assert await machine.models() == [SUB]
    machine.trust(machine.top)
    assert await machine.models() == []
    no = f'[projects."{sub}"]\ntrust_level="untrusted"\n'
    machine.trust(project, more=no)
    assert await machine.models() == [PROJECT]


async def test_trust_is_what_all_other_files_say_together(machine: Machine) -> None:
    machine.layer(PROJECT)
    yes = f'[projects."{machine.project}"]\ntrust_level="trusted"\n'
    machine.write("etc/config.toml", yes)
    machine.say(f'[projects."{machine.project}"]\nother=1\n')
    assert await machine.models(machine.project) == [PROJECT]
    machine.trust(machine.project, level="untrusted")
    assert await machine.models(machine.project) == []
    machine.write("etc/managed_config.toml", yes)
    assert await machine.models(machine.project) == [PROJECT]


async def test_a_project_begins_at_a_repository_or_a_marker(machine: Machine) -> None:
    machine.layer(PROJECT)
    machine.layer(SUB)
    machine.trust(machine.project)
    assert await machine.models() == []  # no repository: only the directory itself counts
    (machine.project / ".git").mkdir()
    assert await machine.models() == []  # an empty one is none
    machine.write("project/.git/HEAD", "")
    assert await machine.models() == [PROJECT, SUB]
    machine.trust(machine.project, more='project_root_markers = ["mark"]\n')
    assert await machine.models() == [SUB]  # trusted as part of the repository
    machine.write("project/mark", "")
    assert await machine.models() == [PROJECT, SUB]
    machine.say('project_root_markers = "mark"\n')
    text = "failed to load executor-local config: project_root_markers must be an array of strings"
    assert str(await machine.refused()) == text


async def test_a_work_tree_is_trusted_with_its_repository_if_that_knows_it(
    machine: Machine,
) -> None:
    machine.layer(PROJECT)
    main = machine.top / "main"
    machine.trust(main)
    machine.write("project/.git", f"gitdir: {main}/.git/worktrees/w\n")
    machine.write("main/.git/HEAD", "")
    machine.write("main/.git/worktrees/w/commondir", "../..\n")
    assert await machine.models() == []
    machine.write("main/.git/worktrees/w/gitdir", "/elsewhere/.git\n")
    assert await machine.models() == []
    machine.write("main/.git/worktrees/w/gitdir", f"{machine.project}/.git\n")
    assert await machine.models() == [PROJECT]


async def test_links_do_not_change_trust(machine: Machine) -> None:
    machine.layer(PROJECT)
    os.symlink("project", machine.top / "link")
    machine.trust(machine.project)
    assert await machine.models(machine.top / "link") == [PROJECT]
    machine.trust(machine.top / "link")
    assert await machine.models(machine.top / "link") == [PROJECT]
    assert await machine.models(machine.project) == []


async def test_a_project_never_says_where_secrets_go(machine: Machine) -> None:
    names = ("model_provider", "notify", "otel", "profile", "openai_base_url")
    machine.write(PROJECT, "".join(f"{name} = 1\n" for name in names) + "kept = 1\n")
    machine.trust(machine.project)
    paths = [[name] for name in (*names, "kept")]
    found = await machine.read(machine.project, configPaths=paths)
    assert [layer.toml for layer in found.config.layers] == ["kept = 1\n"]


async def test_the_peers_own_directory_is_no_project(machine: Machine) -> None:
    machine.trust(machine.home, more='model = "user"\n')
    assert await machine.models(machine.home) == ["user"]


# --- failures ----------------------------------------------------------------------------------


async def test_parameters_are_checked(machine: Machine) -> None:
    for params, text in (
        ({"configPaths": []}, "at least one config or requirements path is required"),
        ({"configPaths": [["a"], []]}, "TOML paths must contain at least one key segment"),
        ({"requirementsPaths": [[]]}, "TOML paths must contain at least one key segment"),
        ({"cwd": "nope", "configPaths": []}, "invalid URI: relative URL without a base"),
        ({"cwd": "file://h/x"}, "'file://h/x' is invalid on 'linux'"),
    ):
        error = await machine.refused(**params)
        assert (error.code, str(error)) == (-32602, text)


AT_START = "TOML parse error at line 1, column 1: Invalid statement"
MODES = "`read-only`, `workspace-write`, `danger-full-access`"
NO_MODE = f"unknown variant `x`, expected one of {MODES}"


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("home/.codex/config.toml", "a = \n", "{path}:1:5: Invalid value"),
        ("home/.codex/config.toml", "a =", "{path}:1:4: Invalid value"),
        (
            "home/.codex/config.toml",
            b"a='\xff'",
            "Failed to read config file {path}: invalid utf-8 sequence of 1 bytes from index 3",
        ),
        ("etc/config.toml", "=", "{path}:1:1: Invalid statement"),
        ("etc/requirements.toml", "=", f"failed to parse requirements layer {{path}}: {AT_START}"),
        (
            "etc/managed_config.toml",
            "sandbox_mode='x'",
            f"Failed to parse config requirements as TOML: {NO_MODE}\nin `sandbox_mode`\n",
        ),
        (
            "home/.codex/config.toml",
            "[projects.p]\ntrust_level='x'",
            "unknown variant `x`, expected `trusted` or `untrusted`\nin `projects.p.trust_level`\n",
        ),
    ],
)
async def test_a_file_that_makes_no_sense_is_an_error(
    machine: Machine, name: str, content: str | bytes, text: str
) -> None:
    path = machine.write(name, content)
    error = await machine.refused()
    assert error.code == -32603
    assert str(error) == "failed to load executor-local config: " + text.format(path=path)


async def test_a_directory_in_place_of_a_file_is_an_error(machine: Machine) -> None:
    path = machine.home / ".codex/config.toml"
    path.mkdir()
    text = f"Failed to read config file {path}: path `{path}` is not a file"
    assert str(await machine.refused()).endswith(text)


async def test_what_nobody_trusts_is_not_even_read(machine: Machine) -> None:
    machine.write(PROJECT, b"\xff")
    assert await machine.models(machine.project) == []
    machine.trust(machine.project)
    error = await machine.refused(cwd=machine.project.as_uri())
    assert "Failed to read project config file" in str(error)


async def test_endless_nesting_is_an_error(machine: Machine) -> None:
    machine.say("model." + "a." * 5000 + "a = 1")
    assert "nested too deeply" in str(await machine.refused())


# --- which keys --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paths", "toml"),
    [
        ([["b"], ["a"]], "a = 1\nb = 2\n"),
        ([["a", "x"]], "a = 1\n"),
        ([["t", "v"]], "[t]\nv = 1\n"),
        ([["t", "u"], ["t"]], "[t]\nv = 1\n\n[t.u]\nw = 2\nx = 3\n"),
        ([["t", "u", "w"], ["t", "v"]], "[t]\nv = 1\n\n[t.u]\nw = 2\n"),
        ([["t", "none"]], "[t]\n"),
        ([["l", "0"]], "[[l]]\nn = 1\n"),
        ([["none"]], None),
        ([["none", "x"]], None),
    ],
)
async def test_keys_are_chosen_by_path(
    machine: Machine, paths: list[list[str]], toml: str | None
) -> None:
    machine.say("a=1\nb=2\nt={v=1,u={w=2,x=3}}\nl=[{n=1}]\n")
    found = await machine.read(configPaths=paths)
    assert [layer.toml for layer in found.config.layers] == ([] if toml is None else [toml])


# --- the form ----------------------------------------------------------------------------------

# Each line as the peer writes it (exec-server 0.166.0); read and written it stays the same.
FORMS = (
    'a = "plain"\n',
    "a = 'q\"uote'\n",
    "a = 'back\\slash'\n",
    'a = "it\'s"\n',
    'a = """both \' and """"\n',
    "a = '''a\\b'c'''\n",
    'a = """\nnew\nline"""\n',
    'a = """\n\n"""\n',
    'a = """\nx\n\\ty"""\n',
    "a = '''\nmulti \"q\" and \\ and\n'a''''\n",
    "a = '''\na\n\"\"\"\"'''\n",
    'a = """\n\\r\n"""\n',
    'a = """\n""\\"\n\'\'\'"""\n',
    'a = """\n\n""\\""\'\'\'"""\n',
    'a = "tab\\tcr\\r\\b\\f"\n',
    'a = "\\u0001\\u001F\\u007F"\n',
    'a = "é☃😀\x85"\n',
    "a = -9223372036854775808\n",
    "a = 1.0\n",
    "a = -0.0\n",
    "a = 10000000000000000000000.0\n",
    "a = 0.00000000015\n",
    "a = -inf\n",
    "a = nan\n",
    "a = true\n",
    "a = 1979-05-27T07:32:00Z\n",
    "a = 1979-05-27T00:32:00.999999-07:00\n",
    "a = 1979-05-27T07:32:00.1\n",
    "a = 1979-05-27\n",
    "a = 07:32:00\n",
    "a = []\n",
    'a = ["x", """\ny\n"""]\n',
    'a = [1, { x = 1, "u v" = {} }]\n',
    "a = [[{ x = 1 }], []]\n",
    "[[a]]\nx = 1\n\n[[a]]\n\n[a.t]\ny = 2\n\n[[a.l]]\n",
    "[a]\n",
    "[a]\nz = 2\n\n[a.e]\n\n[[a.arr]]\nq = 1\n",
    '[a.only."deep key"]\nx = 1\n',
    '"" = 1\n-x_Y9 = 2\n"é" = 3\n"127.0.0.1" = 4\n\'q"\' = 5\n"n\\nl" = 6\n',
)


@pytest.mark.parametrize("text", FORMS)
def test_values_are_written_as_the_peer_does(text: str) -> None:
    assert document(tomllib.loads(text)) == text


texts = st.text(st.sampled_from("ab\"'\\\n\t\r\x01\x7fé ."), max_size=8)
values = st.recursive(
    texts | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(texts, values, max_size=4))
def test_what_is_written_reads_as_it_was(table: dict[str, Any]) -> None:
    assert tomllib.loads(document(table)) == table

"""Codex configuration files that apply to a directory of this machine.

From low to high precedence: the system's, the user's, those of the project from its root down to
the directory, the managed one.  Requirements: the system's, then what the managed file implies.

A project's files count only when it is trusted, for they come with whatever was checked out.
Trust is an entry in one of the other files about the directory, the root of the project or the
repository it is a work tree of; the first of these that has one counts.  Some keys a project
never sets, trusted or not: they say where secrets go and what is run.

Observed from exec-server 0.166.0.  Everything here blocks.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from handrail.errors import FilesError, HandrailError
from handrail.filesystem import regular_file
from handrail.filesystem.errors import shown, utf8_text
from handrail.sandbox.profile import within

Table = dict[str, Any]

SYSTEM_DIR = b"/etc/codex"
#: The largest file, in bytes.
SIZE_LIMIT = 4 * 1024 * 1024

_FOLDER = b".codex"
_GIT = ".git"
_NOT_FOR_PROJECTS = {
    "chatgpt_base_url",
    "experimental_realtime_ws_base_url",
    "model_provider",
    "model_providers",
    "notify",
    "openai_base_url",
    "otel",
    "profile",
    "profiles",
}
_AT = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)")

#: The peer's sentences per kind of file: one that cannot be read, one that is not TOML.
_CONFIG = ("Failed to read config file {path}", "{path}:{line}:{column}")
_PROJECT = (
    "Failed to read project config file {path}",
    "Error parsing project config file {path}: TOML parse error at line {line}, column {column}",
)
_REQUIREMENTS = (
    "Failed to read requirements file {path}",
    "failed to parse requirements layer {path}: TOML parse error at line {line}, column {column}",
)


class LayersError(HandrailError):
    """A file that applies cannot be read or is invalid."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One file: its source in words, the base of its relative paths, its table."""

    source: str
    base: bytes
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Layers:
    """Layers from low to high; the first ``below_cloud`` of them rank below cloud settings."""

    layers: list[Layer]
    below_cloud: int


def load(cwd: bytes, codex_home: bytes, system: bytes = SYSTEM_DIR) -> tuple[Layers, Layers]:
    """Load configuration and requirements for ``cwd``; raises LayersError."""
    managed_path = os.path.join(system, b"managed_config.toml")
    managed = _read(managed_path)
    system_path = os.path.join(system, b"config.toml")
    user_path = os.path.join(codex_home, b"config.toml")
    requirements_path = os.path.join(system, b"requirements.toml")
    lower = [
        Layer(f"{kind} ({shown(path)})", os.path.dirname(path), values)
        for kind, path in (("system", system_path), ("user", user_path))
        if (values := _read(path)) is not None
    ]
    upper: list[Layer] = []
    requirements: list[Layer] = []
    found = _read(requirements_path, _REQUIREMENTS)
    if found is not None:
        requirements.append(Layer(shown(requirements_path), system, found))
    below = len(requirements)
    if managed is not None:
        name = shown(managed_path)
        upper.append(Layer(f"legacy managed_config.toml ({name})", system, managed))
        requirements.append(Layer(name, system, _implied(managed)))
    said = _merged(layer.values for layer in [*lower, *upper])
    project = _project_layers(cwd, codex_home, said)
    system_layers = sum(layer.source.startswith("system ") for layer in lower)
    return Layers([*lower, *project, *upper], system_layers), Layers(requirements, below)


def _read(path: bytes, sentences: tuple[str, str] = _CONFIG) -> Table | None:
    """The table of a file, None when there is no such file."""
    reading, parsing = sentences
    name = shown(path)
    try:
        text = utf8_text(regular_file.read_file(path, limit=SIZE_LIMIT))
    except FilesError as error:
        if error.kind == "not_found":
            return None
        raise LayersError(f"{reading.format(path=name)}: {error}") from None
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise LayersError(f"{reading.format(path=name)}: it is nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        what, line, column = _place(str(error), text)
        where = parsing.format(path=name, line=line, column=column)
        raise LayersError(f"{where}: {what}") from None


def _place(complaint: str, text: str) -> tuple[str, int, int]:
    """Split a parser message into its text and its position; the end of the file if it has none."""
    match = _AT.fullmatch(complaint)
    if match is not None and match[2] is not None:
        return match[1], int(match[2]), int(match[3])
    what = complaint if match is None else match[1]
    return what, text.count("\n") + 1, len(text) - text.rfind("\n")


def _merged(tables: Iterable[Mapping[str, Any]]) -> Table:
    """Merge tables; later ones win."""
    result: Table = {}
    for table in tables:
        for name, value in table.items():
            before = result.get(name)
            if isinstance(value, Mapping) and isinstance(before, Mapping):
                value = _merged([before, value])
            result[name] = value
    return result


# --- projects -----------------------------------------------------------------------------------


def _project_layers(cwd: bytes, codex_home: bytes, said: Table) -> list[Layer]:
    cwd = cwd.rstrip(b"/") or b"/"
    root = _project_root(cwd, _markers(said))
    trust = _Trust(said, root, _repository(cwd))
    layers: list[Layer] = []
    for directory in reversed([d for d in _upwards(cwd) if within(d, root)]):
        folder = os.path.join(directory, _FOLDER)
        if not os.path.isdir(folder) or os.path.realpath(folder) == os.path.realpath(codex_home):
            continue
        if not trust.covers(directory):
            continue
        path = os.path.join(folder, b"config.toml")
        values = _read(path, _PROJECT)
        if values is not None:
            kept = {k: v for k, v in values.items() if k not in _NOT_FOR_PROJECTS}
            layers.append(Layer(f"project ({shown(path)})", folder, kept))
    return layers


class _Trust:
    """What the other files say about trusting directories."""

    def __init__(self, said: Table, root: bytes, repository: bytes | None) -> None:
        self._root = root
        self._repository = repository
        projects = said.get("projects", {})
        if not isinstance(projects, Mapping):
            raise LayersError("`projects` must be a table\nin `projects`\n")
        self._levels: dict[bytes, str] = {}
        for name, project in projects.items():
            level = project.get("trust_level") if isinstance(project, Mapping) else ""
            if level is None:
                continue
            if level not in ("trusted", "untrusted"):
                raise LayersError(
                    f"unknown variant `{level}`, expected `trusted` or `untrusted`\n"
                    f"in `projects.{name}.trust_level`\n"
                )
            self._levels[os.fsencode(name)] = level

    def covers(self, directory: bytes) -> bool:
        for place in (directory, self._root, self._repository):
            if place is None:
                continue
            for name in (os.path.realpath(place), place):
                if name in self._levels:
                    return self._levels[name] == "trusted"
        return False


def _markers(said: Table) -> list[str]:
    markers = said.get("project_root_markers", [_GIT])
    if not isinstance(markers, list) or not all(isinstance(m, str) for m in markers):
        raise LayersError("project_root_markers must be an array of strings")
    return markers


def _project_root(cwd: bytes, markers: list[str]) -> bytes:
    for directory in _upwards(cwd):
        if any(_is_marked(directory, marker) for marker in markers):
            return directory
    return cwd


def _is_marked(directory: bytes, marker: str) -> bool:
    path = os.path.join(directory, os.fsencode(marker))
    try:
        status = os.lstat(path)
    except (OSError, ValueError):
        return False
    if marker == _GIT and stat.S_ISDIR(status.st_mode):
        return os.path.lexists(os.path.join(path, b"HEAD"))  # an empty .git marks nothing
    return True


def _repository(cwd: bytes) -> bytes | None:
    """The main directory of the repository around ``cwd``, also when that is a work tree."""
    root = next((d for d in _upwards(cwd) if _is_marked(d, _GIT)), None)
    if root is None:
        return None
    link = os.path.join(root, _GIT.encode())
    text = _line(link)
    if text is None or not text.startswith(b"gitdir:"):
        return root
    # Any checkout can contain that line.  It counts when the repository lists this work tree.
    private = os.path.join(root, text.removeprefix(b"gitdir:").strip())
    back, common = (
        _line(os.path.join(private, b"gitdir")),
        _line(os.path.join(private, b"commondir")),
    )
    if back is None or common is None:
        return root
    if os.path.realpath(os.path.join(private, back)) != os.path.realpath(link):
        return root
    git = os.path.realpath(os.path.join(private, common))
    return os.path.dirname(git) if os.path.basename(git) == _GIT.encode() else root


def _line(path: bytes) -> bytes | None:
    try:
        return regular_file.read_file(path, limit=4096).strip()
    except FilesError:
        return None


def _upwards(path: bytes) -> list[bytes]:
    found = [path]
    while path != b"/":
        path = os.path.dirname(path)
        found.append(path)
    return found


# --- what the managed file requires --------------------------------------------------------------

_POLICIES = {
    "untrusted": "untrusted",
    "on-failure": "on-request",
    "on-request": "on-request",
    "never": "never",
}
_REVIEWERS = {
    "user": ["user"],
    "auto_review": ["auto_review", "user"],
    "guardian_subagent": ["auto_review", "user"],
}
_MODES = {
    "read-only": ["read-only"],
    "workspace-write": ["read-only", "workspace-write"],
    "danger-full-access": ["read-only", "danger-full-access"],
}
#: The members of a granular policy, and the optional ones.
_GRANULAR = (
    "sandbox_approval",
    "rules",
    "skill_approval",
    "request_permissions",
    "mcp_elicitations",
)
_OPTIONAL = {"skill_approval", "request_permissions"}


def _implied(managed: Table) -> Table:
    """A managed choice allows itself and every stricter one."""
    required: Table = {}
    policy = managed.get("approval_policy")
    if isinstance(policy, Mapping) and isinstance(policy.get("granular"), Mapping):
        required["allowed_approval_policies"] = [{"granular": _granular(policy["granular"])}]
    elif policy is not None:
        required["allowed_approval_policies"] = [_variant("approval_policy", policy, _POLICIES)]
    if (reviewer := managed.get("approvals_reviewer")) is not None:
        found = _variant("approvals_reviewer", reviewer, _REVIEWERS)
        required["allowed_approvals_reviewers"] = found
    if (mode := managed.get("sandbox_mode")) is not None:
        required["allowed_sandbox_modes"] = _variant("sandbox_mode", mode, _MODES)
    return required


def _granular(given: Mapping[str, Any]) -> Table:
    for name in _GRANULAR:
        if name not in given and name not in _OPTIONAL:
            raise _unfit(f"missing field `{name}`", "approval_policy")
        if not isinstance(given.get(name, False), bool):
            raise _unfit(f"`{name}` must be true or false", "approval_policy")
    return {name: given.get(name, False) for name in _GRANULAR}


def _variant(field: str, value: Any, variants: Mapping[str, Any]) -> Any:
    if isinstance(value, str) and value in variants:
        return variants[value]
    expected = ", ".join(f"`{name}`" for name in variants)
    raise _unfit(f"unknown variant `{value}`, expected one of {expected}", field)


def _unfit(what: str, field: str) -> LayersError:
    return LayersError(f"Failed to parse config requirements as TOML: {what}\nin `{field}`\n")

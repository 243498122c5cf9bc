"""Finding the released Codex command line, and running one turn of ``codex exec`` with it."""

from __future__ import annotations

import fcntl
import functools
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VERSION = "0.169.0"
PACKAGE = f"@openai/codex@{VERSION}"
#: How long npm may take to fetch some hundred megabytes.
INSTALL_LIMIT = 300.0

#: What the client has to know about a model: which tools it is given, how much it may be told.
MODEL: dict[str, Any] = {
    "slug": "scripted",
    "display_name": "scripted",
    "description": "Follows a script.",
    "default_reasoning_level": "low",
    "supported_reasoning_levels": [{"effort": "low", "description": "none"}],
    "shell_type": "unified_exec",
    "visibility": "list",
    "supported_in_api": True,
    "priority": 1,
    "base_instructions": "Follow the script.",
    "supports_reasoning_summaries": False,
    "support_verbosity": False,
    "apply_patch_tool_type": "freeform",
    "truncation_policy": {"mode": "tokens", "limit": 10_000},
    "supports_parallel_tool_calls": True,
    "context_window": 272_000,
    "experimental_supported_tools": [],
}


class NoCodex(Exception):
    """Why there is no command line to test with."""


def cache_dir() -> Path:
    """Where this project keeps what it has fetched."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "handrail"


def codex_folder() -> Path:
    """Of that release alone: the benchmark fetches the newest one into a folder of its own."""
    return cache_dir() / f"codex-{VERSION}"


@functools.cache
def find_codex() -> str:
    """$CODEX, else the one in our cache, else npm is asked for it."""
    named = os.environ.get("CODEX")
    if named:
        if not os.access(named, os.X_OK):
            raise NoCodex(f"$CODEX is not a program: {named}")
        return check_version(named)
    folder = codex_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several workers of one test run want it at once
        program = installed(folder) or install(folder)
    return check_version(program)


def installed(folder: Path) -> str | None:
    """The program in a folder that npm has filled; the package has one for each platform."""
    programs = sorted(folder.glob("node_modules/@openai/codex*/vendor/*/bin/codex"))
    return str(programs[0]) if programs else None


def install(folder: Path) -> str:
    """Fetch the package into a folder of its own."""
    npm = shutil.which("npm")
    if npm is None:
        raise NoCodex("set $CODEX to the Codex command line, or install npm to have it fetched")
    command = [npm, "install", "--no-save", "--no-audit", "--no-fund", "--prefix", str(folder)]
    command.append(PACKAGE)
    try:
        done = subprocess.run(command, capture_output=True, timeout=INSTALL_LIMIT, check=False)
    except subprocess.TimeoutExpired:
        raise NoCodex(f"npm did not fetch {PACKAGE} within {INSTALL_LIMIT:g} s") from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise NoCodex(f"npm could not fetch {PACKAGE}: {said[-1] if said else done.returncode}")
    program = installed(folder)
    if program is None:
        raise NoCodex(f"{PACKAGE} has no program for this platform")
    return program


def check_version(program: str) -> str:
    """The program, if it is the release that the tasks were written against."""
    done = subprocess.run([program, "--version"], capture_output=True, timeout=60, check=False)
    said = done.stdout.decode("utf-8", "replace").strip()
    if said.split()[-1:] != [VERSION]:
        raise NoCodex(f"{program} says it is {said!r}; the tasks are for {VERSION}")
    return program


@dataclass(frozen=True)
class Turn:
    """How one ``codex exec`` went."""

    exit_code: int
    events: list[dict[str, Any]]
    stderr: str

    def items(self, kind: str) -> list[dict[str, Any]]:
        """The finished items of one kind, as the client reports them to its user."""
        finished = (e["item"] for e in self.events if e["type"] == "item.completed")
        return [item for item in finished if item["type"] == kind]


def write_config(
    home: Path, base_url: str, model: Mapping[str, Any] = MODEL, more: str = ""
) -> None:
    """A home directory for the client in which it knows the scripted model and nothing else."""
    home.mkdir(parents=True, exist_ok=True)
    catalog = home / "models.json"
    catalog.write_text(json.dumps({"models": [model]}))
    (home / "config.toml").write_text(
        f"""\
model = "{model["slug"]}"
model_provider = "scripted"
model_catalog_json = "{catalog}"
approval_policy = "never"
check_for_update_on_startup = false
web_search = "disabled"

[model_providers.scripted]
name = "scripted"
base_url = "{base_url}"
wire_api = "responses"
requires_openai_auth = false
request_max_retries = 0
stream_max_retries = 0
supports_websockets = false

[analytics]
enabled = false

[feedback]
enabled = false
{more}"""
    )


def run_turn(
    program: str,
    home: Path,
    workspace: Path,
    environment: Mapping[str, str],
    *arguments: str,
    limit: float,
) -> Turn:
    """One prompt, answered by the scripted model; its process group is gone afterwards."""
    command = [program, "exec", "--json", "--skip-git-repo-check", "--ephemeral"]
    process = subprocess.Popen(
        [*command, *arguments, "Follow the script."],
        cwd=workspace,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "CODEX_HOME": str(home), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"no end after {limit:g} s\n{words(out)}\n{words(err)}") from None
    finally:
        end_group(process.pid)
    return Turn(process.returncode, [json.loads(line) for line in out.splitlines()], words(err))


def end_group(group: int) -> None:
    """Whatever of a process group is left."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def words(data: bytes) -> str:
    """The end of what was said."""
    return data.decode("utf-8", "replace")[-8000:]


def toml_list(items: Sequence[str]) -> str:
    """A list of texts; JSON's form of them is also TOML's."""
    return json.dumps(list(items))

"""Our own code under attack: what handrail runs from cannot be changed by what it runs."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail.sandbox.landlock import backend
from handrail.sandbox.landlock.ruleset import Refusal, Rules
from handrail.sandbox.probe import this_machine
from handrail.sandbox.profile import Access, Entry, Intent, Machine, Profile, resolve
from tests.sandbox.installed import OPTIONAL, PLANT, REWRITE, SYSTEM_PYTHON, VERSION, Installed, run

WORKSPACE = """
import sys
from handrail import Workspace
with Workspace(sys.argv[1], at=sys.argv[2] or None) as ws:
    ws.run(["true"])
    done = ws.run(sys.argv[3:])
    print(done.stdout, done.stderr)
"""


@pytest.fixture
def room() -> Iterator[Path]:
    """Outside of the system's temporary directory, which is writable inside."""
    place = Path(tempfile.mkdtemp(prefix="handrail-own-", dir="/var/tmp")).resolve()
    (place / "ws").mkdir()
    yield place
    shutil.rmtree(place)


@pytest.fixture
def ws(room: Path) -> Path:
    return room / "ws"


def start(ours: Installed, surface: str, ws: Path, room: Path, *argv: str) -> str:
    """Run a command by one of the surfaces; all that was said."""
    if surface in ("workspace", "serve"):
        program = room / "agent.py"
        program.write_text(WORKSPACE)
        serve = f"stdio:{ours.command} serve --listen stdio --state-dir {room}/state"
        at = serve if surface == "serve" else ""
        return run(ours.python, str(program), str(ws), at, *argv, cwd=room).stdout
    return run(ours.command, surface, "--", *argv, cwd=ws).stdout


@pytest.mark.parametrize("surface", ["sandbox", "run", "workspace", "serve"])
def test_the_virtual_environment_that_we_run_from_is_read_only(
    surface: str, ws: Path, room: Path
) -> None:
    ours = Installed(ws / ".venv")
    (ws / "attack.py").write_text(REWRITE)
    mark = room / "mark"
    attack = [SYSTEM_PYTHON, "-I", str(ws / "attack.py"), str(ours.package), str(mark)]
    said = start(ours, surface, ws, room, *attack)
    assert "rewritten: 0" in said
    names = f"bin/handrail bin/new pyvenv.cfg lib/{VERSION}/site-packages/{{new.pth,handrail/new}}"
    moves = [".venv", ".venv/bin", ".venv/lib", ".venv/pyvenv.cfg"]
    script = "; ".join(
        [f"cd {ws}/.venv", f"for f in {names}; do touch $f; done", "cd .."]
        + [f"mv {name} moved" for name in moves]
    )
    start(ours, surface, ws, room, "bash", "-c", script)
    assert not mark.exists()
    assert all((ws / name).exists() for name in moves)
    left = {path.name for path in ours.where.rglob("*")}
    assert not left & {"new", "new.pth"}


def test_another_environment_in_the_workspace_stays_writable(ws: Path) -> None:
    ours = Installed(ws / ".venv")
    python = os.path.realpath(sys.executable)  # not in /tmp, of which the command has its own
    script = f"{python} -m venv --without-pip other && touch other/bin/new && echo works"
    done = run(ours.command, "sandbox", "--", "sh", "-c", script, cwd=ws)
    assert "works" in done.stdout
    assert (ws / "other" / "bin" / "new").exists()


def test_the_source_of_an_editable_install_is_read_only(ws: Path, room: Path) -> None:
    (ws / "src").mkdir()
    ours = Installed(room / "venv", package=ws / "src" / "handrail")
    (ours.site / "editable.pth").write_text(f"{ws}/src\n{ws}/later\n")
    script = "touch src/x src/handrail/y; mv src s; mkdir -p later; touch tests; echo end"
    done = run(ours.command, "run", "--", "sh", "-c", script, cwd=ws)
    assert "end" in done.stdout
    assert {path.name for path in ws.iterdir()} == {"src", "tests"}  # nor what is named and missing
    assert {path.name for path in (ws / "src").iterdir()} == {"handrail"}
    assert not (ws / "src" / "handrail" / "y").exists()


def test_an_environment_that_is_the_workspace_itself_is_read_only_in_its_parts(ws: Path) -> None:
    ours = Installed(ws)
    names = f"bin/new lib/new pyvenv.cfg lib/{VERSION}/site-packages/sitecustomize.py"
    script = f"for f in {names}; do echo x > $f; done; mv lib l; touch fine; echo end"
    before = (ws / "pyvenv.cfg").read_text()
    done = run(ours.command, "run", "--", "sh", "-c", script, cwd=ws)
    assert "end" in done.stdout
    assert (ws / "pyvenv.cfg").read_text() == before
    assert (ws / "fine").exists()
    assert not {path.name for path in ws.rglob("*")} & {"new", "sitecustomize.py"}
    assert ours.site.exists()


@pytest.mark.parametrize("below", ["", "handrail", "handrail/sandbox"])
def test_a_writable_root_where_our_code_lies_is_refused(below: str, room: Path) -> None:
    ours = Installed(room / "venv")
    done = run(ours.command, "run", "--", "touch", "x", cwd=ours.site / below)
    assert done.returncode == 125
    assert "handrail itself runs from" in done.stdout
    assert "installed elsewhere" in done.stdout
    assert not (ours.site / below / "x").exists()


def test_an_environment_behind_a_link_of_the_workspace_is_refused(ws: Path, room: Path) -> None:
    ours = Installed(room / "venv")
    (ws / ".venv").symlink_to(ours.where)
    done = run(str(ws / ".venv" / "bin" / "handrail"), "run", "--", "true", cwd=ws)
    assert done.returncode == 125
    assert "symbolic link" in done.stdout
    assert run(ours.command, "run", "--", "true", cwd=ws).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts something")
@pytest.mark.parametrize("runs_from", ["venv", "ws/mirror"])
def test_code_is_read_only_at_its_second_mount(runs_from: str, ws: Path, room: Path) -> None:
    ours = Installed(room / "venv")
    (ws / "mirror").mkdir()
    site = f"lib/{VERSION}/site-packages"
    names = f"bin/new pyvenv.cfg {site}/new.pth {site}/handrail/__init__.py"
    script = (
        f"cd mirror; for f in {names}; do echo x >> $f; done; mv lib l; touch ../fine; echo end"
    )
    mount = f"mount --bind {ours.where} {ws}/mirror && exec {room}/{runs_from}/bin/python"
    before = (ours.package / "__init__.py").read_text()
    argv = ["-P", "-m", "handrail", "run", "--", "sh", "-c", script]
    done = run("unshare", "-m", "sh", "-c", f'{mount} "$@"', "sh", *argv, cwd=ws)
    assert "end" in done.stdout
    assert (ws / "fine").exists()
    assert ours.site.exists()
    assert (ours.package / "__init__.py").read_text() == before
    assert not {path.name for path in ours.where.rglob("*")} & {"new", "new.pth"}


def test_compiled_files_kept_elsewhere_are_not_for_commands(ws: Path) -> None:
    cache = {"PYTHONPYCACHEPREFIX": str(ws / "cache")}
    argv = [
        sys.executable,
        "-m",
        "handrail",
        "sandbox",
        "--",
        "sh",
        "-c",
        "mkdir -p cache/x; touch y",
    ]
    for _ in range(2):  # missing, then there
        run(*argv, cwd=ws, **cache)
        assert (ws / "y").exists()
        assert not (ws / "cache" / "x").exists()
        (ws / "cache").mkdir(exist_ok=True)


def test_what_the_next_start_searches_in_the_home_is_covered(ws: Path) -> None:
    base = getattr(sys, "_base_executable", sys.executable)
    place = f".local/lib/{VERSION}/site-packages"
    script = f"mkdir -p {place}; echo x > {place}/usercustomize.py; touch fine"
    path = os.pathsep.join((str(Path(backend.__file__).parents[3]), *sys.path[-1:]))
    argv = [base, "-P", "-m", "handrail", "sandbox", "--", "sh", "-c", script]
    run(*argv, cwd=ws, HOME=str(ws), PYTHONPATH=path)
    assert (ws / "fine").exists()
    assert not (ws / place / "usercustomize.py").exists()


# --- the search path --------------------------------------------------------------------------


@pytest.mark.parametrize("surface", ["sandbox", "run"])
@pytest.mark.parametrize("way", ["-m", "absolute", "relative", "below"])
def test_no_module_is_taken_from_the_workspace(
    surface: str, way: str, ws: Path, room: Path
) -> None:
    (ws / "lib").mkdir()
    where = ws / "lib" if way == "below" else ws
    (ws / "plant.py").write_text(PLANT)
    path = {"absolute": str(ws), "relative": "lib:.", "below": str(ws / "lib")}.get(way)
    variables = {"PYTHONPATH": path} if path else {}
    command = [sys.executable, *([] if way == "-m" else ["-P"]), "-m", "handrail"]
    plant = f"cd {where} && {SYSTEM_PYTHON} -I {ws}/plant.py {room}/mark"
    done = run(*command, surface, "--", "sh", "-c", plant, cwd=ws, **variables)
    assert ("planted" in done.stdout) is (way != "below")  # which is read-only instead
    assert not (room / "mark").exists()


EMBEDDING = f"""
import importlib, sys
from handrail import Workspace
mark = sys.argv[1]
with Workspace(".") as ws:
    ws.run(["true"])
    print(ws.run([{SYSTEM_PYTHON!r}, "-I", "plant.py", mark]).stdout)
    for name in {OPTIONAL.split()!r}:
        open(name + ".py", "w").write("open(%r, 'a').write(__name__)" % mark)
    from handrail import AgentShell
    import handrail.server.app, handrail.executor.remote, handrail.mcp_server
    import subprocess, sqlite3, zipfile, xml.dom.minidom
    from handrail.server.http_out import client as http_client
    http_client._load()
    import mine
    importlib.import_module("extra")
    ws.run(["sh", "-c", "exit 3"])
here = sys.path[0]
names = [n for n, m in sys.modules.items() if (getattr(m, "__file__", None) or "").startswith(here)]
print("from here:", *sorted(names))
"""


def test_an_embedding_program_in_the_workspace_keeps_its_modules_and_we_ours(
    ws: Path, room: Path
) -> None:
    for name in ("mine.py", "extra.py"):
        (ws / name).write_text("")
    (ws / "plant.py").write_text(PLANT)
    program = ws / "program.py"
    program.write_text(EMBEDDING)
    done = run(sys.executable, str(program), str(room / "mark"), cwd=ws)
    assert "planted" in done.stdout
    assert "from here: __main__ extra mine\n" in done.stdout
    assert not (room / "mark").exists()


AGENT = f"""
import asyncio, sys
from handrail import AgentShell
async def main():
    async with AgentShell(".", approver=None) as shell:
        await shell.call("exec_command", {{"cmd": "true"}})
        command = "{SYSTEM_PYTHON} -I plant.py " + sys.argv[1]
        said = await shell.call("exec_command", {{"cmd": command, "yield_time_ms": 20000}})
        print(said.text)
        patch = "*** Begin Patch\\n*** Add File: made\\n+x\\n*** End Patch\\n"
        print((await shell.call("apply_patch", {{"input": patch}})).text)
asyncio.run(main())
"""

SERVED = f"""
import sys
from handrail import Workspace
serve = sys.executable + " -m handrail serve --listen stdio --state-dir " + sys.argv[2]
with Workspace(".", at="stdio:" + serve) as ws:
    ws.run(["true"])
    print(ws.run([{SYSTEM_PYTHON!r}, "-I", "plant.py", sys.argv[1]]).stdout)
    ws.files.write("made", b"x")
"""


@pytest.mark.parametrize("text", [AGENT, SERVED], ids=["agent", "serve"])
def test_nor_does_an_agent_or_a_server(text: str, ws: Path, room: Path) -> None:
    (ws / "plant.py").write_text(PLANT)
    (ws / "program.py").write_text(text)
    argv = [sys.executable, "program.py", str(room / "mark"), str(room / "state")]
    done = run(*argv, cwd=ws)
    assert "planted" in done.stdout
    assert (ws / "made").exists(), done.stdout
    assert not (room / "mark").exists()


# --- as a profile -----------------------------------------------------------------------------


def profile(root: Path, machine: Machine) -> Profile:
    entries = (Entry(Access.READ, special="root"), Entry(Access.WRITE, special="project_roots"))
    intent = Intent(entries=entries, workspace_roots=(os.fsencode(root),), protected=())
    return resolve(intent, os.fsencode(root), machine)


def test_landlock_refuses_what_it_cannot_keep_read_only(ws: Path) -> None:
    package = Path(backend.__file__).parents[2]
    for root in (package.parent, package, package / "sandbox"):
        found = backend.rules_of(profile(root, this_machine()))
        assert isinstance(found, Refusal)
        assert "handrail itself runs" in found.reason
    assert isinstance(backend.rules_of(profile(ws, this_machine())), Rules)


def test_files_that_are_not_restricted_have_no_such_rules() -> None:
    from handrail.sandbox.profile import Files, Intent

    assert resolve(Intent(files=Files.EXTERNAL), b"/", this_machine()).own_code == ()

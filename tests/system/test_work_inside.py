"""What people do all day, done inside the sandbox: a workspace to write to, no network."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients import MemoryClient
from tests.support.servers import serving

SECONDS = 50.0
GIT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.com",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.com",
}


def needs(*programs: str) -> Any:
    missing = [name for name in programs if shutil.which(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed here: {', '.join(missing)}")


pytestmark = needs("bwrap")


def special(kind: str, subpath: str | None = None) -> dict[str, Any]:
    value = {"kind": kind} if subpath is None else {"kind": kind, "subpath": subpath}
    return {"type": "special", "value": value}


def workspace_write(workspace: Path, *more: tuple[str, str]) -> dict[str, Any]:
    """Read everything, write the workspace and /tmp; ``more``: parts of it with their access."""
    entries = [
        {"path": special("root"), "access": "read"},
        {"path": special("project_roots"), "access": "write"},
        {"path": special("slash_tmp"), "access": "write"},
        *({"path": special("project_roots", sub), "access": access} for sub, access in more),
    ]
    return {
        "permissions": {
            "type": "managed",
            "file_system": {"type": "restricted", "entries": entries},
            "network": "restricted",
        },
        "cwd": workspace.as_uri(),
        "workspaceRoots": [workspace.as_uri()],
        "windowsSandboxLevel": "disabled",
    }


class Inside:
    """One client whose commands are all sandboxed in the same way."""

    def __init__(self, client: MemoryClient, workspace: Path, sandbox: dict[str, Any]) -> None:
        self.client = client
        self.workspace = workspace
        self.sandbox = sandbox
        self.started = 0

    async def start(self, *argv: str, tty: bool = False, **env: str) -> str:
        self.started += 1
        name = f"p{self.started}"
        result = await self.client.start(
            name,
            *argv,
            cwd=self.workspace.as_uri(),
            tty=tty,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.workspace),
                "LANG": "C.UTF-8",
                "TERM": "xterm",
                **GIT,
                **env,
            },
            sandbox=self.sandbox,
        )
        assert result["sandboxType"] == "linuxSeccomp"
        return name

    async def end(self, name: str) -> tuple[int, str]:
        async with asyncio.timeout(SECONDS):
            output = await self.client.read_to_close(name)
        page = await self.client.read(name)
        return page["exitCode"], output.decode("utf-8", "replace")

    async def run(self, *argv: str, **env: str) -> str:
        """The output of a command that must succeed."""
        code, output = await self.end(await self.start(*argv, **env))
        assert code == 0, output
        return output

    async def fails(self, *argv: str, **env: str) -> str:
        code, output = await self.end(await self.start(*argv, **env))
        assert code != 0, output
        return output

    async def shell(self, script: str, **env: str) -> str:
        return await self.run("bash", "-ec", script, **env)

    async def terminal(self, *argv: str, keys: list[tuple[str, str]]) -> str:
        """A command on a terminal; each key is typed after its text was seen."""
        name = await self.start(*argv, tty=True)
        for number, (text, key) in enumerate(keys):
            await self.client.until_output(name, text.encode())
            await self.client.write(name, key.encode(), f"key {number}")
        code, output = await self.end(name)
        assert code == 0, output
        return output


@asynccontextmanager
async def inside(workspace: Path, *more: tuple[str, str]) -> AsyncIterator[Inside]:
    async with serving() as served:
        yield Inside(await served.client(), workspace, workspace_write(workspace, *more))


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    made.mkdir()
    return made


@pytest.fixture
def repository(workspace: Path) -> Path:
    """A repository with one commit and one change."""
    script = "git init -q -b main . && echo one > file && git add . && git commit -qm first"
    env = {**os.environ, **GIT}
    subprocess.run(["bash", "-ec", script], cwd=workspace, env=env, check=True, timeout=30)
    (workspace / "file").write_text("two\n")
    return workspace


@needs("git")
async def test_git_can_be_looked_at(repository: Path) -> None:
    async with inside(repository) as box:
        assert await box.run("git", "status", "--porcelain") == " M file\n"
        assert "+two" in await box.run("git", "diff")
        assert "first" in await box.run("git", "log", "--oneline")
        assert "ead-only" in await box.fails("git", "commit", "-qam", "second")
    assert _git(repository, "log", "--oneline").count("\n") == 1


@needs("git")
async def test_git_commits_at_the_commit_level(repository: Path) -> None:
    level = ((".git", "write"), (".git/hooks", "read"), (".git/config", "read"))
    async with inside(repository, *level) as box:
        await box.run("git", "commit", "-qam", "second")
        await box.shell(
            "git checkout -qb topic; echo three > other; git add .; git commit -qm third"
        )
        assert "ead-only" in await box.fails("bash", "-c", "echo x > .git/hooks/post-commit")
        assert await box.fails("git", "config", "core.hooksPath", "/tmp")
    assert _git(repository, "log", "--format=%s", "topic") == "third\nsecond\nfirst\n"
    assert "hooksPath" not in (repository / ".git" / "config").read_text()


def _git(repository: Path, *words: str) -> str:
    env = {**os.environ, **GIT}
    command = ["git", *words]
    done = subprocess.run(command, cwd=repository, env=env, check=True, capture_output=True)
    return done.stdout.decode()


def _wheel(folder: Path) -> Path:
    """A package of one module, packed by hand."""
    path = folder / "tiny-1.0-py3-none-any.whl"
    info = "tiny-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("tiny.py", "ANSWER = 42\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{info}/WHEEL", tags)
        names = ("tiny.py", f"{info}/METADATA", f"{info}/WHEEL", f"{info}/RECORD")
        wheel.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in names))
    return path


async def test_a_virtual_environment_and_a_local_wheel(workspace: Path) -> None:
    pytest.importorskip("ensurepip")
    wheel = _wheel(workspace)
    async with inside(workspace) as box:
        await box.run(sys.executable, "-m", "venv", "env")
        await box.run("env/bin/python", "-m", "pip", "install", "-q", "--no-index", str(wheel))
        assert await box.run("env/bin/python", "-c", "import tiny; print(tiny.ANSWER)") == "42\n"


async def test_pytest_with_workers(workspace: Path) -> None:
    pytest.importorskip("xdist")
    (workspace / "test_x.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('n', range(6))\n"
        "def test(n, tmp_path):\n"
        "    (tmp_path / 'x').write_text('x')\n"
    )
    async with inside(workspace) as box:
        words = ("-m", "pytest", "-q", "-n", "2", "--basetemp", "temporary")
        path = os.environ.get("PYTHONPATH", "")
        assert "6 passed" in await box.run(sys.executable, *words, PYTHONPATH=path)


@needs("node")
async def test_node(workspace: Path) -> None:
    code = """
        const fs = require('fs'), child = require('child_process');
        fs.writeFileSync('made', 'by node');
        const said = child.execFileSync('cat', ['made']).toString();
        const {Worker} = require('worker_threads');
        new Worker("require('worker_threads').parentPort.postMessage(7)", {eval: true})
            .on('message', n => console.log(said, n));
    """
    async with inside(workspace) as box:
        assert await box.run("node", "-e", code) == "by node 7\n"


@needs("make")
async def test_make_with_jobs(workspace: Path) -> None:
    rules = "all: a b c d\n\t@cat a b c d\na b c d:\n\t@echo $@ > $@\n"
    (workspace / "Makefile").write_text(rules)
    async with inside(workspace) as box:
        assert await box.run("make", "-j4") == "a\nb\nc\nd\n"
        (workspace / "sub").mkdir()
        (workspace / "sub" / "Makefile").write_text("all:\n\t+@$(MAKE) -s -C ..\n")
        assert "a\nb\nc\nd\n" in await box.run("make", "-s", "-j4", "-C", "sub")


async def test_multiprocessing_with_a_manager(workspace: Path) -> None:
    (workspace / "many.py").write_text(
        "import multiprocessing as mp\n"
        "def work(shared, n):\n"
        "    shared[n] = n * n\n"
        "if __name__ == '__main__':\n"
        "    with mp.Manager() as manager:\n"
        "        shared = manager.dict()\n"
        "        with mp.Pool(2) as pool:\n"
        "            pool.starmap(work, [(shared, n) for n in range(5)])\n"
        "        lock, event = mp.Lock(), mp.Event()\n"
        "        with lock: event.set()\n"
        "        print(sorted(shared.values()), event.is_set())\n"
    )
    async with inside(workspace) as box:
        assert await box.run(sys.executable, "many.py") == "[0, 1, 4, 9, 16] True\n"


async def test_a_server_and_a_client_on_loopback(workspace: Path) -> None:
    (workspace / "page").write_text("hello from inside")
    (workspace / "talk.py").write_text(
        "import http.server, threading, urllib.request\n"
        "class Quiet(http.server.SimpleHTTPRequestHandler):\n"
        "    def log_message(self, *words): pass\n"
        "with http.server.ThreadingHTTPServer(('127.0.0.1', 0), Quiet) as server:\n"
        "    threading.Thread(target=server.serve_forever, daemon=True).start()\n"
        "    url = f'http://127.0.0.1:{server.server_port}/page'\n"
        "    plain = urllib.request.build_opener(urllib.request.ProxyHandler({}))\n"
        "    print(plain.open(url, timeout=20).read().decode())\n"
        "    server.shutdown()\n"
    )
    async with inside(workspace) as box:
        assert await box.run(sys.executable, "talk.py") == "hello from inside\n"


@needs("script")
async def test_script_records_a_terminal(workspace: Path) -> None:
    async with inside(workspace) as box:
        said = await box.terminal(
            "script", "-qec", "test -t 0 && echo in a terminal", "log", keys=[]
        )
        assert "in a terminal" in said
    assert "in a terminal" in (workspace / "log").read_text()


@needs("less")
async def test_less_pages(workspace: Path) -> None:
    (workspace / "long").write_text("".join(f"line {n}\n" for n in range(200)))
    async with inside(workspace) as box:
        said = await box.terminal("less", "long", keys=[("line 5", "G"), ("line 199", "q")])
    assert "line 199" in said


@needs("vim")
async def test_vim_edits(workspace: Path) -> None:
    (workspace / "text").write_text("before\n")
    async with inside(workspace) as box:
        keys = [("before", "ggOadded\x1b"), ("added", ":wq\r")]
        await box.terminal("vim", "-u", "NONE", "-N", "text", keys=keys)
    assert (workspace / "text").read_text() == "added\nbefore\n"

"""A tour in twenty lines: sandbox, shell session, REPL, approval, and a server that is killed.

Every line is checked before it is printed, and the tour ends with an error at the first that does
not hold.  ``make demo`` runs it; ``python examples/demo.py`` does the same where handrail is
installed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal, Self, TypeAlias

from handrail import (
    AgentShell,
    HandrailError,
    Output,
    Process,
    Profile,
    TerminalApprover,
    Workspace,
    __version__,
)

BOLD, DIM, GREEN, OFF = (
    ("\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[0m")
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ
    else ("", "", "", "")
)
LINES = 40
Sandbox: TypeAlias = Literal["workspace-write", "off"]
PYTHON = ["env", "PYTHON_BASIC_REPL=1", sys.executable, "-q"]

claims = 0


def title(text: str) -> None:
    print(f"{BOLD}{text}{OFF}", flush=True)


def show(text: str) -> None:
    print(f"    {text}", flush=True)


def claim(held: object, text: str) -> None:
    """Print what was seen to be true; what is not ends the tour."""
    global claims
    if not held:
        raise SystemExit(f"  ✗ this does not hold: {text}")
    claims += 1
    print(f"  {GREEN}✓{OFF} {text}", flush=True)


def main() -> None:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="handrail-demo-") as directory:
        project = Path(directory, "project")
        for name in ("src", "release", "build"):
            (project / name).mkdir(parents=True)
        sandbox: Sandbox = "workspace-write" if sandboxed(project) else "off"
        shell_session(project, sandbox)
        asyncio.run(approval(project, sandbox))
        with Server(Path(directory, "state")) as server:
            crash(server, project, sandbox)
    took = f"{time.perf_counter() - began:.1f} s"
    print(f"{DIM}handrail {__version__}: {claims} claims, each checked just now, in {took}{OFF}")


def sandboxed(project: Path) -> bool:
    """Show a refusal and a grant; False where this machine has no sandbox."""
    title("1. A command writes where its profile says, and nowhere else")
    copy = "echo v1 > src/app && cp src/app release/app"
    app = project / "release" / "app"
    with Workspace(project, sandbox=Profile(write=("src",))) as ws:
        try:
            result = ws.run(copy, watch_denials=True)
        except HandrailError as error:
            show(f"no sandbox on this machine: {error}")
            claim(
                not list(project.glob("src/*")), "so the command was refused, not run without one"
            )
            show("`handrail doctor` says what is missing; the rest of the tour has no sandbox")
            return False
        show(f"$ {copy}")
        show(result.stderr.strip())
        seen = [one.path for one in result.denials if one.certain]
        claim(
            result.exit_code and seen == [str(app)] and not app.exists(),
            'refused with Profile(write=("src",)), and result.denials says what: release/app',
        )
        ws.run(copy, sandbox=Profile(write=("src", "release")), check=True)
        claim(
            app.read_text() == "v1\n",
            'granted with Profile(write=("src", "release")): the copy is there',
        )
    return True


def shell_session(project: Path, sandbox: Sandbox) -> None:
    title("2. A bash that keeps its state, and a REPL in a terminal")
    with Workspace(project, sandbox=sandbox) as ws, ws.shell() as sh:
        sh.run("cd src; greet() { echo hello, $NAME; }; NAME=world", check=True)
        result = sh.run("greet; pwd")
        show("$ cd src; greet() { echo hello, $NAME; }; NAME=world")
        claim(
            result.stdout == f"hello, world\n{ws.root}/src\n",
            f"the next command says {result.stdout.splitlines()[0]!r} and is in src",
        )
        late = sh.run("sleep 60", timeout=0.3)
        claim(
            late.timed_out and sh.run("greet").stdout == "hello, world\n",
            f"`sleep 60` is interrupted after {late.duration:.1f} s, and the bash goes on",
        )
        repl = ws.start(PYTHON, tty=True)
        claim(asked(repl, "6 * 7", "42"), ">>> 6 * 7 is 42, typed into a terminal")


def asked(repl: Process, typed: str, answer: str) -> bool:
    """Type a line at the prompt and wait for its answer."""
    repl.expect(">>> ", timeout=20)
    repl.send(f"{typed}\n")
    return bool(repl.expect(rf"\n{answer}\b", timeout=20))


async def approval(project: Path, sandbox: Sandbox) -> None:
    title("3. A model asks, a person decides")
    build = project / "build"
    keys, typed = os.pipe()
    screen, shown = os.pipe()
    approver = TerminalApprover(reader=keys, writer=shown)
    async with AgentShell(Workspace(project, sandbox=sandbox), approver=approver) as shell:
        os.write(typed, b"n it took an hour\n")
        reply = await shell.call("exec_command", {"cmd": "rm -rf build"})
        command, _, reason, *choices = os.read(screen, 1 << 16).decode().strip().split("\n")
        keys_on_offer = " ".join(line.strip()[:3] for line in choices if "[" in line[:5])
        show(f"{command.strip()}: {reason.strip()}")
        show(f"{keys_on_offer} > n it took an hour")
        claim(
            build.exists() and "it took an hour" in reply.text,
            "nothing ran, and the model reads why",
        )
        os.write(typed, b"y\n")
        reply = await shell.call("exec_command", {"cmd": "rm -rf build"})
        claim(reply.ok and not build.exists(), "asked again and answered with y: it is gone")
    for descriptor in (keys, typed, screen, shown):
        os.close(descriptor)


class Server:
    """``handrail serve`` on a Unix socket, which can be killed and started again."""

    def __init__(self, state: Path) -> None:
        state.mkdir(mode=0o700)
        self.url = f"unix:{state}/socket"
        self._argv = [sys.executable, "-P", "-m", "handrail", "serve", "--log-level", "error"]
        self._argv += ["--state-dir", str(state), "--listen", self.url]
        self._start()

    def _start(self) -> None:
        self.process = subprocess.Popen(self._argv, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        if not self.process.stdout.readline():  # its address: it listens
            raise SystemExit("the server did not start; it has said why")

    def crash(self) -> None:
        """Kill it without a word, and start the next."""
        self._end(signal.SIGKILL)
        self._start()

    def _end(self, number: signal.Signals) -> None:
        with self.process as process:  # waits for its end
            process.send_signal(number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._end(signal.SIGTERM)


def crash(server: Server, project: Path, sandbox: Sandbox) -> None:
    title("4. The server is killed in the middle, and nothing is lost")
    killed: list[int] = []
    times: list[float] = []

    def watch(output: Output) -> None:
        if "step 10\n" in output.text and not killed:
            killed.append(server.process.pid)
            down = time.perf_counter()
            server.crash()
            times.append(time.perf_counter() - down)

    with Workspace(project, at=server.url, sandbox=sandbox) as ws:
        repl = ws.start(PYTHON, tty=True)
        asked(repl, "n = 41; n > 0", "True")
        build = f"for i in $(seq {LINES}); do echo step $i; sleep 0.02; done; exit 3"
        result = ws.run(build, on_output=watch, timeout=60)
        claim(
            killed and server.process.pid not in killed,
            f"kill -9 {killed[0]} at step 10 of {LINES}; the next server, {server.process.pid},"
            f" took over in {times[0]:.1f} s",
        )
        claim(
            result.stdout == "".join(f"step {i}\n" for i in range(1, LINES + 1))
            and result.exit_code == 3,
            f"its {LINES} lines and its exit code, 3, have arrived, each once and in order",
        )
        claim(asked(repl, "n + 1", "42"), "the REPL was not restarted: it still knows n")


if __name__ == "__main__":
    main()

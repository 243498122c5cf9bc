"""Starting servers under test, stopping them, and reading their cost from /proc."""

from __future__ import annotations

import contextlib
import glob
import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Mapping

TICK = os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """A port nobody listens on at the moment."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def stat_fields(pid: int) -> list[bytes]:
    """/proc/PID/stat from the state on: what follows the name, which may hold anything."""
    with open(f"/proc/{pid}/stat", "rb") as f:
        stat = f.read()
    return stat[stat.rindex(b")") + 2 :].split()


def children(pid: int) -> list[int]:
    """The direct children of a process, zombies included."""
    found = []
    try:
        for tid in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{tid}/children") as f:
                found += [int(x) for x in f.read().split()]
    except OSError:
        pass
    return found


def tree(pid: int) -> list[int]:
    """A process and everything below it."""
    found, todo = [], [pid]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children(pid)
    return found


def is_zombie(pid: int) -> bool:
    """Has it ended without anybody asking how?"""
    try:
        return stat_fields(pid)[0] == b"Z"
    except OSError:
        return False


def listeners(port: int) -> list[int]:
    """The processes that hold a socket listening on an IPv4 port."""
    sockets = set()
    with open("/proc/net/tcp") as f:
        next(f)
        for line in f:
            columns = line.split()
            if columns[3] == "0A" and int(columns[1].split(":")[1], 16) == port:
                sockets.add(f"socket:[{columns[9]}]")
    return [pid for pid in all_pids() if holds_any(pid, sockets)]


def holds_any(pid: int, links: set[str]) -> bool:
    """Does one of the descriptors of a process point to one of these?"""
    try:
        return any(
            os.readlink(f"/proc/{pid}/fd/{fd}") in links for fd in os.listdir(f"/proc/{pid}/fd")
        )
    except OSError:
        return False


def all_pids() -> list[int]:
    """Every process there is."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


class ServerFailed(Exception):
    """A server under test did not come up; the sentence says where its own words are."""


class Server:
    """A server under test: a URL of one already running, or a command with {port}."""

    def __init__(self, name: str, spec: str, env: Mapping[str, str]) -> None:
        self.name = name
        self.spec = spec
        self.env = env
        self.process: subprocess.Popen | None = None
        self.pids: list[int] = []
        self.url = ""
        self.port = 0
        self.launched_at = 0.0
        self.external = spec.startswith("ws://")
        # Helpers that a server starts later, even detached ones, inherit this and are counted;
        # the workloads' own children get an explicit environment without it.
        self.mark = ("BENCH_MARK", f"{name}-{os.getpid()}-{id(self):x}")

    @property
    def log(self) -> str:
        """The file that takes what it prints."""
        return os.path.join(self.env["BENCH_STATE"], f"{self.name}.log")

    def launch(self) -> None:
        """Start it, without waiting; of a running one, find the processes."""
        if self.external:
            self.url = self.spec
            self.pids = listeners(int(self.spec.split(":")[2].split("/")[0]))
            return
        self.port = free_port()
        self.url = f"ws://127.0.0.1:{self.port}"
        self.pids = []
        self.relaunch()

    def relaunch(self) -> None:
        """Start it again where it was, for instance after it was killed."""
        argv = shlex.split(self.spec.replace("{port}", str(self.port)))
        env = {**self.env, self.mark[0]: self.mark[1]}
        self.launched_at = time.perf_counter()
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                argv,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_port(self, timeout: float = 20.0) -> None:
        """Wait until it accepts connections."""
        if self.external:
            return
        end = time.perf_counter() + timeout
        while time.perf_counter() < end:
            if self.process.poll() is not None:
                raise ServerFailed(
                    f"{self.name} ended with {self.process.returncode}: see {self.log}"
                )
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", self.port)) == 0:
                    before = [pid for pid in self.pids if os.path.exists(f"/proc/{pid}")]
                    self.pids = list(dict.fromkeys(tree(self.process.pid) + before))
                    return
            time.sleep(0.0005)
        raise ServerFailed(f"{self.name} does not listen: see {self.log}")

    def ended(self) -> int | None:
        """The exit code of a server that ended by itself."""
        return None if self.process is None else self.process.poll()

    def stop(self) -> None:
        """End it, and whatever it leaves behind."""
        if self.process is None:
            return
        self.refresh()
        pids = list(dict.fromkeys(tree(self.process.pid) + self.pids))
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(5)
        if any(os.path.exists(f"/proc/{pid}") for pid in pids[1:]):
            time.sleep(0.3)
            for pid in pids[1:]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass
        self.process = None

    def end_children(self, timeout: float = 60.0) -> None:
        """Have it, or a helper that outlived it, end its processes: killed, it would leave them."""
        end = time.perf_counter() + timeout
        for pid in self.pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)
            while time.perf_counter() < end and os.path.exists(f"/proc/{pid}"):
                if self.process.poll() is not None and pid == self.process.pid:
                    break
                time.sleep(0.01)

    # What it costs.

    def refresh(self) -> None:
        """Add marked processes that came after the start (a helper daemon, for instance)."""
        if self.external:
            return
        mark = "=".join(self.mark).encode()
        known = set(self.pids)
        for pid in all_pids():
            if pid in known:
                continue
            try:
                with open(f"/proc/{pid}/environ", "rb") as f:
                    if mark in f.read().split(b"\0"):
                        self.pids.append(pid)
            except OSError:
                pass

    def cpu(self) -> tuple[float, float]:
        """Own user and system seconds, and those of children it has waited for."""
        self.refresh()
        own = waited = 0
        for pid in self.pids:
            try:
                fields = stat_fields(pid)
            except OSError:
                continue
            own += int(fields[11]) + int(fields[12])
            waited += int(fields[13]) + int(fields[14])
        return own / TICK, waited / TICK

    def cpu_us(self) -> float:
        """Microseconds that all threads of it have run, exactly; without those that have ended."""
        total = 0
        for pid in self.pids:
            for path in glob.glob(f"/proc/{pid}/task/*/schedstat"):
                with contextlib.suppress(OSError), open(path) as f:
                    total += int(f.read().split()[0])
        return total / 1e3

    def rss(self) -> int:
        """Resident bytes: by ``status``, for the kernel rounds the figure of ``stat``."""
        self.refresh()
        return self._memory("VmRSS:")

    def peak(self) -> int:
        """The most bytes that were resident since ``reset_peak``."""
        self.refresh()
        return self._memory("VmHWM:")

    def _memory(self, kind: str) -> int:
        total = 0
        for pid in self.pids:
            try:
                with open(f"/proc/{pid}/status") as f:
                    found = [line for line in f if line.startswith(kind)]
            except OSError:
                continue
            total += sum(int(line.split()[1]) * 1024 for line in found)
        return total

    def reset_peak(self) -> None:
        """Begin a new measurement of the peak."""
        for pid in self.pids:
            try:
                with open(f"/proc/{pid}/clear_refs", "w") as f:
                    f.write("5")
            except OSError:
                pass

    def fds_threads(self) -> tuple[int, int]:
        """Open descriptors and running threads."""
        self.refresh()
        fds = threads = 0
        for pid in self.pids:
            try:
                fds += len(os.listdir(f"/proc/{pid}/fd"))
                threads += len(os.listdir(f"/proc/{pid}/task"))
            except OSError:
                pass
        return fds, threads

    def zombies(self) -> int:
        """Processes below the server that ended and were not waited for."""
        self.refresh()
        below = {pid for top in self.pids for pid in tree(top)}
        return sum(is_zombie(pid) for pid in below)

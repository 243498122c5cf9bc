"""The floor: plain C, Python and Node programs that do the bare minimum, in the same run.

What a server loses against these is its own doing; what these lose is the machine's.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable

import wire
from proc import Server
from workloads.context import MIB, Metrics, us

HERE = os.path.dirname(os.path.abspath(__file__))
TRUE = ["/bin/true"]
#: Read size and pipe size (0: as the kernel makes it).
PIPES = ((8192, 0), (65536, 0), (65536, MIB), (262144, MIB))
FRAMES = (8192, 65536, 262144)


class Limits:
    """The floor programs, compiled where a compiler is."""

    def __init__(self, state: str, quick: bool) -> None:
        self.state = state
        self.quick = quick
        self.floor = os.path.join(state, "floor")
        self.bwrap = shutil.which("bwrap")
        self.have_c = False
        if shutil.which("gcc"):
            command = ["gcc", "-O2", "-o", self.floor, os.path.join(HERE, "floor.c")]
            self.have_c = subprocess.run(command).returncode == 0

    async def measure(self) -> Metrics:
        """One repetition of everything."""
        metrics = self.spawn()
        metrics.update(self.pipe())
        try:
            metrics.update(await asyncio.wait_for(self.websocket(), 90))
        except Exception as e:
            metrics["error.ws"] = f"{type(e).__name__}: {e}"
        return metrics

    def run_floor(self, *arguments: str) -> list[float]:
        """Run the C program and read the numbers it prints."""
        command = [self.floor, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return [float(word) for word in done.stdout.split()]

    # Starting processes.

    def spawn(self) -> Metrics:
        """/bin/true by C, by C in a sandbox, and by Python."""
        count = 60 if self.quick else 300
        metrics: Metrics = {}
        if self.have_c:
            for mode in ("bare", "pipes", "pty"):
                metrics.update(self.c_spawn(f"c_{mode}", mode, TRUE, count, count))
            if self.bwrap:
                argv = self.sandboxed(TRUE)
                few = max(10, count // 6), max(16, count // 6)
                metrics.update(self.c_spawn("c_bwrap", "pipes", argv, *few))
        metrics["lat.py_posix_spawn"] = timed(count, posix_spawn_true)
        metrics["lat.py_subprocess"] = timed(count, subprocess_true)
        return metrics

    def c_spawn(self, name: str, mode: str, argv: list[str], alone: int, in_eight: int) -> Metrics:
        """One after the other, and eight at a time."""
        seconds, p50, p99 = self.run_floor("spawn", mode, str(alone), "1", *argv)
        seconds_of_eight, *_ = self.run_floor("spawn", mode, str(in_eight), "8", *argv)
        return {
            f"{name}_per_s_1": alone / seconds,
            f"{name}_p50_us": p50,
            f"{name}_p99_us": p99,
            f"{name}_per_s_8": in_eight / seconds_of_eight,
        }

    def sandboxed(self, argv: list[str]) -> list[str]:
        """A command in about the sandbox that the servers make."""
        mounts = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
        writable = ["--bind", self.state, self.state]
        spaces = ["--unshare-user", "--unshare-pid", "--unshare-net"]
        ties = ["--new-session", "--die-with-parent"]
        return [self.bwrap, *ties, *mounts, *writable, *spaces, *argv]

    # Moving bytes.

    def pipe(self) -> Metrics:
        """Reading a child's output, without any wire."""
        metrics: Metrics = {}
        if not self.have_c:
            return metrics
        total = (32 if self.quick else 256) * MIB
        head = ["/usr/bin/head", "-c", str(total), "/dev/zero"]
        for read_size, pipe_size in PIPES:
            got, seconds, cpu = self.run_floor("pipe", str(read_size), str(pipe_size), *head)
            key = f"read{read_size >> 10}K_pipe{(pipe_size or 65536) >> 10}K"
            metrics[key + "_MB_s"] = got / seconds / 1e6
            metrics[key + "_cpu_s_per_GiB"] = cpu * (1 << 30) / total
        return metrics

    async def websocket(self) -> Metrics:
        """Sending output notifications without running anything, or only ``head``."""
        metrics: Metrics = {}
        for name, argv, modes in self.flood_servers():
            command = shlex.join(argv).replace("'{port}'", "{port}")
            server = Server("flood-" + name, command, {**os.environ, "BENCH_STATE": self.state})
            server.launch()
            server.wait_port()
            try:
                await asyncio.sleep(0.2)
                for mode in modes:
                    for size in FRAMES:
                        metrics.update(await self.flood(server, name, mode, size))
                if name == "py":
                    metrics["lat.py_echo_rpc"] = await echo_floor(server.url + "/echo")
            finally:
                server.stop()
        return metrics

    def flood_servers(self) -> list[tuple[str, list[str], tuple[str, ...]]]:
        """Name, command and modes of the flood servers that can run here."""
        python = [sys.executable, os.path.join(HERE, "flood_server.py"), "{port}"]
        servers = [("py", python, ("flood", "relay"))]
        if self.have_c:
            servers.append(("c", [self.floor, "wsflood", "{port}"], ("flood", "relay")))
        if shutil.which("node"):
            node = ["node", os.path.join(HERE, "flood_server.mjs"), "{port}"]
            servers.append(("node", node, ("flood",)))
        return servers

    async def flood(self, server: Server, name: str, mode: str, size: int) -> Metrics:
        """Take one flood in frames of ``size`` raw bytes."""
        total = (32 if self.quick else 256) * MIB
        processes: list[wire.Process] = []

        def make() -> wire.Connection:
            connection = wire.Connection()
            processes.append(connection.watch("flood"))
            return connection

        cpu_before, _ = server.cpu()
        begin, client_before = wire.now(), time.process_time()
        _, connection = await wire.ws_connect(
            make,
            f"{server.url}/{mode}?{size}&{total}",
            max_frame_size=16 * MIB,
            read_buffer_init_size=MIB,
        )
        (process,) = processes
        seconds = await asyncio.wait_for(process.done, 60) - begin
        client = time.process_time() - client_before
        cpu, _ = server.cpu()
        await connection.close()
        key = f"{name}_{mode}_{size >> 10}K"
        metrics: Metrics = {
            key + "_MB_s": total / seconds / 1e6,
            key + "_cpu_s_per_GiB": (cpu - cpu_before) * (1 << 30) / total,
            key + "_client_busy": client / seconds,
        }
        if process.bytes != total:
            metrics["bad." + key] = total - process.bytes
        return metrics


class EchoListener(wire.WSListener):
    """Notes when the one frame it waits for arrives."""

    def on_ws_frame(self, transport: wire.WSTransport, frame: wire.WSFrame) -> None:
        self.arrival.set_result(wire.now())


async def echo_floor(url: str) -> list[float]:
    """A frame to a Python server that sends it back."""
    transport, listener = await wire.ws_connect(EchoListener, url)
    loop = asyncio.get_running_loop()
    result = []
    for _ in range(300):
        listener.arrival = loop.create_future()
        begin = wire.now()
        transport.send(wire.WSMsgType.TEXT, b'{"id":1,"method":"x","params":{}}')
        result.append(us(await asyncio.wait_for(listener.arrival, 5) - begin))
    transport.disconnect()
    return result


def timed(count: int, act: Callable[[], None]) -> list[float]:
    """Microseconds of each of ``count`` calls."""
    result = []
    for _ in range(count):
        begin = wire.now()
        act()
        result.append(us(wire.now() - begin))
    return result


def posix_spawn_true() -> None:
    """The cheapest start Python offers."""
    os.waitpid(os.posix_spawn(TRUE[0], TRUE, {}), 0)


def subprocess_true() -> None:
    """The usual one."""
    pipe = subprocess.PIPE
    subprocess.run(TRUE, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)

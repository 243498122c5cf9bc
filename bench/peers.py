"""Peers that do not speak the wire, each measured in its own way."""

from __future__ import annotations

import http.client
import json
import os
import shlex
import subprocess
import time
from collections.abc import Mapping
from typing import Any

import wire
from proc import Server, free_port
from workloads.context import MIB, Metrics, us


def oneshot(command: str, env: Mapping[str, str], cwd: str, quick: bool) -> Metrics:
    """A command that runs something once and ends (a sandbox launcher, for instance)."""
    latencies = []
    failed = 0
    for _ in range(3 if quick else 15):
        begin = wire.now()
        done = subprocess.run(
            shlex.split(command),
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=30,
        )
        latencies.append(us(wire.now() - begin))
        failed += done.returncode != 0
    return {"lat.oneshot": latencies, "bad.exit": failed}


def swerex(command: str, env: Mapping[str, str], quick: bool) -> Metrics:
    """SWE-ReX speaks HTTP: a one-shot ``execute``, and a command in a bash session."""
    port = free_port()
    argv = shlex.split(command.replace("{port}", str(port)))
    begin = wire.now()
    with open(os.path.join(env["BENCH_STATE"], "swerex.log"), "ab") as log:
        process = subprocess.Popen(
            argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    client = SweRex(port, argv[argv.index("--auth-token") + 1])
    try:
        client.wait_alive(begin + 20)
        metrics: Metrics = {"startup_ms": (wire.now() - begin) * 1e3}
        server = Server("swerex", f"ws://127.0.0.1:{port}/", env)
        server.pids = [process.pid]
        metrics["rss_MiB"] = server.rss() / MIB
        metrics.update(swerex_calls(client, server, quick))
    finally:
        client.close()
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return metrics


def swerex_calls(client: SweRex, server: Server, quick: bool) -> Metrics:
    """The calls that come nearest to spawn, echo and stream."""
    metrics: Metrics = {}
    count = 20 if quick else 100
    metrics["lat.rpc_floor"] = [client.alive() for _ in range(count)]
    cpu_before, _ = server.cpu()
    metrics["lat.execute_true"] = [client.execute(["/bin/true"])[0] for _ in range(count)]
    metrics["cpu_ms_server_per_execute"] = (server.cpu()[0] - cpu_before) * 1e3 / count
    client.post("/create_session", {"session": "default", "session_type": "bash"})
    for name, line in (("true", "true"), ("echo", "echo 1234567")):
        times = [client.run_in_session(line) for _ in range(5 if quick else 15)]
        metrics[f"lat.run_in_session_{name}"] = times
    try:
        size = 4 * MIB if quick else 16 * MIB
        argv = ["/usr/bin/head", "-c", str(size), "/dev/zero"]
        microseconds, result = client.execute(argv, timeout=30)
        metrics["execute_16MiB_MB_s"] = len(result["stdout"]) / microseconds
        metrics["bad.execute_lost_bytes"] = size - len(result["stdout"])
    except Exception as e:
        metrics["error.execute_big"] = str(e)[:200]
    return metrics


class SweRex:
    """Its HTTP interface; every call gives the microseconds it took."""

    def __init__(self, port: int, token: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        self.headers = {"X-API-Key": token, "Content-Type": "application/json"}

    def wait_alive(self, deadline: float) -> None:
        """Ask until it answers."""
        while True:
            try:
                self.alive()
                return
            except OSError:
                self.connection.close()
                if wire.now() > deadline:
                    raise
                time.sleep(0.005)

    def alive(self) -> float:
        """The cheapest call it has."""
        begin = wire.now()
        self.connection.request("GET", "/is_alive", headers=self.headers)
        self.connection.getresponse().read()
        return us(wire.now() - begin)

    def post(self, path: str, body: dict[str, Any]) -> tuple[float, Any]:
        """Any call; the result beside its time."""
        begin = wire.now()
        self.connection.request("POST", path, json.dumps(body), self.headers)
        response = self.connection.getresponse()
        answer = response.read()
        microseconds = us(wire.now() - begin)
        if response.status != 200:
            raise RuntimeError(f"{path}: {response.status} {answer[:200]!r}")
        return microseconds, json.loads(answer)

    def execute(self, argv: list[str], **options: Any) -> tuple[float, Any]:
        """Run one command to its end."""
        return self.post("/execute", {"command": argv, "shell": False, "check": False, **options})

    def run_in_session(self, line: str) -> float:
        """Run one line in the shell that is open."""
        body = {"action_type": "bash", "session": "default", "command": line}
        return self.post("/run_in_session", body)[0]

    def close(self) -> None:
        self.connection.close()

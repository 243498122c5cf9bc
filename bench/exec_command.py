"""What a sandboxed ``exec_command("true")`` costs end to end, beside bare bwrap.

Interleaved, so that a busy machine is busy for all.  bwrap runs the same shell with the usual
namespaces and none of the protections; the target is at most 2.5 times that.

  python bench/exec_command.py [N]
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time

from handrail import AgentShell

TARGET = 2.5


def bwrap(folder: str) -> list[str]:
    names = ("user", "pid", "ipc", "net", "uts")
    return [
        "bwrap", "--ro-bind", "/", "/", "--bind", folder, folder,
        "--dev", "/dev", "--proc", "/proc",
        *(f"--unshare-{name}" for name in names), "--die-with-parent", "--new-session",
        "--", "/bin/bash", "-c", "true",
    ]  # fmt: skip


def bare(argv: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    return time.perf_counter() - start


async def ours(shell: AgentShell) -> float:
    start = time.perf_counter()
    answer = await shell.exec_command("true", shell="bash")
    if answer.exit_code != 0:
        raise SystemExit(answer.text)
    return time.perf_counter() - start


async def main(count: int) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        argv = bwrap(folder)
        async with AgentShell(folder) as shell:
            await ours(shell)
            bare(argv)
            pairs = [(await ours(shell), bare(argv)) for _ in range(count)]
    mine, its = (statistics.median(column) * 1000 for column in zip(*pairs, strict=True))
    print(f"exec_command {mine:.2f} ms, bwrap {its:.2f} ms (medians of {count})")
    print(f"{mine / its:.2f} times bwrap; at most {TARGET} wanted")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))

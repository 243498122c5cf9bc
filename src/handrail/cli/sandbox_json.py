"""``handrail sandbox --json``: run the command in a child, and print its output as one object.

The child goes the way it always goes, which may end in becoming the command; so its stdout and
stderr lie in memory that we read when it has ended, and what failed before there was a command
comes to us apart from them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from handrail import exit_codes, memory_file
from handrail.process import PASSED_SIGNALS

_PR_SET_PDEATHSIG = 1


def run(argv: list[str], command: Callable[[], int], failed: Callable[[Exception], str]) -> int:
    """Run the command and print its result; returns its exit code.

    ``failed`` makes the object of a failure before the command; its exit code is in there too.
    """
    from handrail.cli import error_output, options, stdio

    stdio.take_over()
    error_output.use_json(True)
    out, err, told = (memory_file.create(name) for name in ("out", "err", "told"))
    began = time.monotonic()
    # Until there is a child to pass them on to.
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_SIGNALS)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _end_with(parent)
        os.dup2(out, 1)
        os.dup2(err, 2)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_SIGNALS)
        try:
            code = command()
        except Exception as error:  # noqa: BLE001 (told by the parent)
            os.write(told, failed(error).encode())
            code = 0
        os._exit(code)
    for number in PASSED_SIGNALS:
        signal.signal(number, lambda number, _: os.kill(pid, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_SIGNALS)
    status = os.waitpid(pid, 0)[1]
    if why := _all(told):
        import json

        print(why.decode())
        return stdio.settle(json.loads(why)["error"]["exitCode"])
    code = exit_codes.of_status(status)
    try:
        options.print_json(
            {
                "argv": argv,
                "exitCode": code,
                "stdout": _all(out).decode("utf-8", "replace"),
                "stderr": _all(err).decode("utf-8", "replace"),
                "durationMs": round((time.monotonic() - began) * 1000, 3),
            }
        )
    except stdio.OutputFailed as error:
        error.outcome = f"and the command's exit code was {code}"
        return stdio.failed(error)
    return stdio.settle(code)


def _end_with(parent: int) -> None:
    """Have the command end when its parent is killed; its guard cleans up."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _all(fd: int) -> bytes:
    with open(fd, "rb", closefd=True) as file:
        file.seek(0)
        return file.read()

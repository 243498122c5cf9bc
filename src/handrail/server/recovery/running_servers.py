"""Which servers of this user run, by their state directories: address, pid and version of each.

A server writes a line about itself into its directory when it listens.  The directory is locked as
long as the server lives, so a line of a dead one is told from that of a live one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from dataclasses import asdict, dataclass

from handrail import private_files, private_places
from handrail.errors import UsageError
from handrail.server.recovery import state_dir
from handrail.server.recovery.state_dir import SERVING
from handrail.version import __version__

#: The end of a server's Unix socket, and of the state directory beside it.
OWN_STATE = "server.sock.state"


@dataclass(frozen=True, slots=True)
class RunningServer:
    """One server of this user, running or dead."""

    state_dir: str
    address: str
    pid: int
    version: str
    started_at: float
    #: The state home of the server: those of another one are not listed.
    home: str = ""
    running: bool = False

    @property
    def is_own(self) -> bool:
        """Whether it is the one that `handrail run --detach` starts."""
        return os.path.basename(self.state_dir) == OWN_STATE

    def forget(self) -> None:
        """Remove the line of a dead server."""
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self.state_dir, SERVING))


def enter(directory: int, path: str, address: str) -> None:
    """Write down that this process serves there; never raises."""
    home = private_places.state_home()
    found = asdict(RunningServer(path, address, os.getpid(), __version__, time.time(), home))
    del found["running"]
    with contextlib.suppress(OSError):
        private_files.replace_file(directory, SERVING, json.dumps(found).encode())


def every() -> list[RunningServer]:
    """All servers of this state home; raises UsageError without one."""
    home = private_places.state_home()
    given = dict.fromkeys(private_places.state_directories())  # by any program of this user
    found = [entry for path in given if (entry := _read(path)) is not None and entry.home == home]
    found += [entry for path in _own() if path not in given and (entry := _read(path)) is not None]
    return sorted(found, key=lambda one: (not one.running, one.address))


def choose(address: str | None, path: str | None = None) -> RunningServer:
    """The running server at an address or of a state directory, or the only one.

    Raises UsageError, which lists them, when that is not one.
    """
    running = [one for one in every() if one.running]
    if path is not None:
        entry = _read(os.path.abspath(path))
        running = [entry] if entry is not None and entry.running else []
    elif address is not None:
        running = [one for one in running if address in (one.address, one.state_dir)]
    if len(running) == 1:
        return running[0]
    if running:
        raise UsageError(
            "several servers are running; name one with --at: "
            + ", ".join(f"{one.address} (pid {one.pid})" for one in running)
        )
    where = path or address
    raise UsageError(
        "no server is running" + (f" at {where}" if where else "") + "; `handrail servers` lists"
        " those there are, `handrail serve` starts one"
    )


def stop(server: RunningServer, seconds: float) -> bool:
    """Tell a server to stop, and wait until it has; False when it has not in this time.

    Raises UsageError when it is not the process that has the directory.
    """
    if state_dir.holder(server.state_dir) != server.pid:
        raise UsageError(f"pid {server.pid} does not serve {server.state_dir} any more; look again")
    try:
        fd = os.pidfd_open(server.pid)
    except ProcessLookupError:
        return True
    try:
        signal.pidfd_send_signal(fd, signal.SIGTERM)
        import select

        return bool(select.select([fd], [], [], seconds)[0])
    finally:
        os.close(fd)


def _own() -> list[str]:
    """The directories in which servers are that were given none."""
    base = os.path.join(private_places.state_home(), "servers")
    found = []
    with contextlib.suppress(OSError):
        found = [os.path.join(base, name) for name in sorted(os.listdir(base))]
    return [*found, os.path.join(private_places.runtime_directory(), OWN_STATE)]


def _read(path: str) -> RunningServer | None:
    try:
        running = state_dir.in_use(path)
        found = json.loads(state_dir.read_text(path, SERVING))
        return RunningServer(**{**found, "state_dir": path, "running": running})
    except FileNotFoundError:
        # A server of an earlier version, or one that does not listen yet.
        pid = state_dir.holder(path) if os.path.isdir(path) and _in_use(path) else 0
        return RunningServer(path, path, pid, "?", time.time(), running=True) if pid else None
    except (OSError, ValueError, TypeError, RecursionError):
        return None  # none of this version


def _in_use(path: str) -> bool:
    try:
        return state_dir.in_use(path)
    except OSError:
        return False

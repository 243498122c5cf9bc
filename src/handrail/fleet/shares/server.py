"""The exec-server of a share: started so that it outlives its starter, found again, restarted.

    PLACE/server.json   the pid and start time of the server, its port
    PLACE/key           the key of the share, for tokens
    PLACE/cert.pem, PLACE/key.pem   a certificate of its own, and its key
    PLACE/log           what the server has printed
    PLACE/stamp         touched while a supervisor lives (``handrail serve --supervised``)
    PLACE/incoming/     archives of templates on their way

The directory is the one of the server's workspaces, so no sandbox shows anything of it.  All of
this is blocking; the supervisor calls it in threads.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

from handrail import own_code, private_files
from handrail.fleet.errors import FleetError
from handrail.keeper.proc_children import stat_fields

#: How long a server may take until it listens, and to end in order.
_START_SECONDS = 30.0
_STOP_SECONDS = 15.0
_LOOK = 0.05
_TRIES = 5
#: A log beyond this size is cut to its second half at the next start.
_LOG_BYTES = 16 * 1024 * 1024
#: Its end is read in such blocks at first.
_LOG_BLOCK = 64 * 1024

#: Run by an interpreter of its own: the server is its child and outlives it, in a session of its
#: own, so neither the end of a Ray worker nor what Ray does to its children reaches the server.
_LAUNCH = """
import os, sys
log, *argv = sys.argv[1:]
fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
pid = os.fork()
if pid:
    print(pid, flush=True)
    os._exit(0)
os.setsid()
os.dup2(fd, 1)
os.dup2(fd, 2)
os.execv(argv[0], argv)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareOptions:
    """What a server of a share is started with."""

    share: str
    key: str
    address: str
    cpu_millis: int
    memory_bytes: int
    min_free: int
    orphan_after: float
    #: auto, on or off.
    tls: str


@dataclass(frozen=True, slots=True)
class Running:
    """A server that was started: ``start`` is the kernel's time of it, which makes the pid sure."""

    pid: int
    start: int
    port: int


class ShareServer:
    """The server below one directory."""

    def __init__(self, place: str, options: ShareOptions) -> None:
        self._place = os.path.realpath(place)
        self._options = options
        self._files: tuple[str, str] | None = None
        self.running: Running | None = None
        self.certificate = ""

    @property
    def url(self) -> str:
        """Where it listens."""
        port = 0 if self.running is None else self.running.port
        address = self._options.address
        host = f"[{address}]" if ":" in address else address
        return f"{'wss' if self._files else 'ws'}://{host}:{port}"

    @property
    def alive(self) -> bool:
        """Whether the server that is known runs."""
        running = self.running
        return running is not None and start_of(running.pid) == running.start

    def of(self, *names: str) -> str:
        return os.path.join(self._place, *names)

    # --- beginning ---------------------------------------------------------------------------

    def begin(self) -> None:
        """Find the server, or start one; raises FleetError and OSError."""
        for path in (os.path.dirname(os.path.dirname(self._place)), os.path.dirname(self._place)):
            os.makedirs(path, mode=0o700, exist_ok=True)
        os.close(private_files.open_directory(self._place))
        self.touch()
        self._write("key", self._options.key)
        self._files = self._certificate()
        self.running = self._read()
        if not self.alive:
            self.start()

    def start(self) -> None:
        """Start the server at the address it had, if it had one; raises FleetError."""
        self.touch()
        before = self.running
        for _ in range(_TRIES):
            port = before.port if before is not None else _free_port(self._options.address)
            pid = self._launch(port)
            started = start_of(pid)
            self.running = Running(pid, started, port)
            self._write("server.json", json.dumps(asdict(self.running)))
            if self._listens(port):
                return
            self.kill()
        raise FleetError(f"the server does not start; its log ends with: {self.log(5)}")

    def _launch(self, port: int) -> int:
        log = self.of("log")
        _cut(log)
        argv = [sys.executable, "-P", "-c", _LAUNCH, log, *self._argv(port)]
        environ = {
            name: value
            for name, value in own_code.environment().items()
            if not name.startswith(("RAY_", "HANDRAIL_"))
        }
        made = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environ, check=True, cwd="/"
        )
        return int(made.stdout)

    def _argv(self, port: int) -> list[str]:
        options = self._options
        address = options.address
        host = f"[{address}]" if ":" in address else address
        argv = [sys.executable, "-P", "-m", "handrail", "serve"]
        argv += ["--listen", f"ws://{host}:{port}"]
        argv += ["--workspaces", self._place, "--state-dir", self.of("server")]
        argv += ["--ws-auth", "signed-bearer-token", "--ws-shared-secret-file", self.of("key")]
        argv += ["--ws-audience", options.share]
        share = f"cpus={options.cpu_millis / 1000:g},memory={options.memory_bytes}"
        argv += ["--share", share, "--min-free", str(options.min_free)]
        argv += ["--supervised", f"{options.orphan_after:g}"]
        argv += ["--orphan-ttl", f"{options.orphan_after:g}", "--on-stop", "end"]
        if self._files is not None:
            argv += ["--tls-cert", self._files[0], "--tls-key", self._files[1]]
        return argv

    def _listens(self, port: int) -> bool:
        """Wait until it accepts connections; False when it ends, or takes too long."""
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self.alive:
            try:
                socket.create_connection((self._options.address, port), 1.0).close()
            except OSError:
                time.sleep(_LOOK)
            else:
                return self.alive
        return False

    # --- its certificate -----------------------------------------------------------------------

    def _certificate(self) -> tuple[str, str] | None:
        mode = self._options.tls
        files = None if mode == "off" else self._rays()
        if files is None:
            if mode == "off" or (mode == "auto" and _is_loopback(self._options.address)):
                return None
            files = self._own()
        with open(files[0]) as file:
            self.certificate = file.read()
        return files

    def _rays(self) -> tuple[str, str] | None:
        """The certificate of Ray, if its own lines are encrypted."""
        names = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY")
        found = [os.environ.get(name, "") for name in names]
        if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true") or not all(found):
            return None
        return found[0], found[1]

    def _own(self) -> tuple[str, str]:
        certificate, key = self.of("cert.pem"), self.of("key.pem")
        if os.path.exists(certificate) and os.path.exists(key):
            return certificate, key
        program = own_code.find_program("openssl")
        if program is None:
            raise FleetError(
                "lines beyond loopback are encrypted, and there is no openssl here to make a"
                " certificate; install it, or use tls='off' in a network that encrypts"
            )
        made = (f"{certificate}.new", f"{key}.new")
        before = os.umask(0o077)
        try:
            subprocess.run(
                [
                    *(program, "req", "-x509", "-newkey", "ec", "-pkeyopt"),
                    *("ec_paramgen_curve:prime256v1", "-nodes", "-days", "3650"),
                    *("-subj", f"/CN={self._options.share}", "-out", made[0], "-keyout", made[1]),
                ],
                check=True,
                capture_output=True,
            )
        except (OSError, subprocess.CalledProcessError) as error:
            raise FleetError(f"openssl made no certificate: {error}") from None
        finally:
            os.umask(before)
        os.rename(made[1], key)
        os.rename(made[0], certificate)
        return certificate, key

    # --- files --------------------------------------------------------------------------------

    def touch(self) -> None:
        """Tell the server that its supervisor lives; nothing happens before it has a directory."""
        try:
            fd = os.open(self.of("stamp"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            return
        try:
            os.utime(fd)
        finally:
            os.close(fd)

    def _write(self, name: str, text: str) -> None:
        path = self.of(name)
        fd = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(text)
        os.rename(f"{path}.new", path)

    def _read(self) -> Running | None:
        try:
            with open(self.of("server.json")) as file:
                return Running(**json.load(file))
        except (OSError, ValueError, TypeError):
            return None

    def log(self, lines: int) -> str:
        """The last lines of what the server has printed."""
        found: list[bytes] = []
        size = _LOG_BLOCK
        try:
            with open(self.of("log"), "rb") as file:
                whole = os.fstat(file.fileno()).st_size
                while True:
                    file.seek(max(0, whole - size))
                    found = file.read().splitlines()
                    if size >= whole or len(found) > lines:
                        break
                    size *= 4
        except OSError:
            return ""
        return b"\n".join(found[-lines:]).decode("utf-8", "replace")

    def receive(self, name: str) -> str:
        """The path of a file for an archive that arrives."""
        os.makedirs(self.of("incoming"), mode=0o700, exist_ok=True)
        return self.of("incoming", name)

    def discard(self, path: str) -> None:
        """Remove an archive that has arrived."""
        if os.path.dirname(path) == self.of("incoming"):
            with contextlib.suppress(OSError):
                os.unlink(path)

    # --- the end --------------------------------------------------------------------------------

    def stop(self) -> None:
        """End the server with everything in it, and remove its directory.

        One that has just died is started once more: what it has left has to be ended too.
        """
        if not self.alive:
            with contextlib.suppress(FleetError, OSError, subprocess.CalledProcessError):
                self.start()
        self._signal(signal.SIGTERM)
        if not self._ended(_STOP_SECONDS):
            self.kill()
        shutil.rmtree(self._place, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(self._place))  # the last share of this fleet here

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._ended(_STOP_SECONDS)

    def _signal(self, number: int) -> None:
        running = self.running
        if running is not None and self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(running.pid, number)

    def _ended(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.alive:
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK)
        return True

    def watch(self) -> int | None:
        """A descriptor that becomes readable when the server ends; None: it has."""
        running = self.running
        if running is None:
            return None
        try:
            fd = os.pidfd_open(running.pid)
        except OSError:
            return None
        if not self.alive:
            os.close(fd)
            return None
        return fd


def sweep(directory: str, own: str, seconds: float) -> None:
    """Remove what servers of this fleet have left here that ended without their supervisor."""
    try:
        names = os.listdir(directory)
    except OSError:
        return
    for name in names:
        path = os.path.join(directory, name)
        if name == own or not os.path.isdir(path):
            continue
        try:
            age = time.time() - os.stat(os.path.join(path, "stamp")).st_mtime
            with open(os.path.join(path, "server.json")) as file:
                running = Running(**json.load(file))
        except (OSError, ValueError, TypeError):
            continue
        if age > seconds and start_of(running.pid) != running.start:
            shutil.rmtree(path, ignore_errors=True)


def start_of(pid: int) -> int:
    """When a process was started, in the kernel's ticks; 0: there is none, or it is a zombie."""
    try:
        state, _, rest = stat_fields(pid)
    except OSError:
        return 0
    return 0 if state in (b"Z", b"X") else int(rest.split()[17])


def _free_port(address: str) -> int:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as sock:
        sock.bind((address, 0))
        return int(sock.getsockname()[1])


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _cut(path: str) -> None:
    """Keep the second half of a log that has grown too long."""
    try:
        size = os.stat(path).st_size
        if size < _LOG_BYTES:
            return
        with open(path, "rb") as file:
            file.seek(size - _LOG_BYTES // 2)
            rest = file.read()
        with open(f"{path}.new", "wb") as file:
            file.write(rest)
        os.rename(f"{path}.new", path)
    except OSError:
        pass

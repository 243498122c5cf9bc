"""Whom a command in a sandbox can connect to, with real sockets on both sides."""

from __future__ import annotations

import errno
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from handrail import listeners
from handrail.sandbox import probe
from handrail.sandbox.denial import Denial
from handrail.sandbox.profile import Access, Entry, Intent, Machine, resolve
from handrail.sandbox.syscalls import notify
from handrail.sandbox.syscalls.connect import ConnectCall, ConnectCalls
from handrail.sandbox.syscalls.lazy_supervisor import LazySupervisor
from tests.support.eventually import eventually
from tests.support.sandboxes import Held

#: What every script begins with.
HEAD = """
import os, socket, subprocess, sys, threading
def tried(address, kind=socket.SOCK_STREAM, timeout=None):
    s = socket.socket(socket.AF_UNIX, kind)
    s.settimeout(timeout)
    try:
        s.connect(address)
        return s.recv(20).decode()
    except OSError as error:
        return type(error).__name__
def listening(address, kind=socket.SOCK_STREAM, backlog=5):
    s = socket.socket(socket.AF_UNIX, kind)
    s.bind(address)
    s.listen(backlog)
    return s
def serve(s, text=b"INSIDE"):
    def one():
        while True:
            try:
                s.accept()[0].sendall(text)
            except OSError:
                return
    threading.Thread(target=one, daemon=True).start()
    return s
"""


class Host:
    """A socket of the host that tells everybody who connects; knows how many have."""

    def __init__(self, path: Path, kind: int = socket.SOCK_STREAM) -> None:
        self.path = path
        self.sock = socket.socket(socket.AF_UNIX, kind)
        self.sock.bind(str(path))
        path.chmod(0o777)
        self.sock.listen()
        self.visits = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                visitor, _ = self.sock.accept()
            except OSError:
                return
            self.visits += 1
            with visitor:
                visitor.sendall(b"HOST")

    def close(self) -> None:
        self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()
        self._thread.join()


def run(held: Held, ws: Path, script: str, *words: str, network: bool = False) -> list[str]:
    entries = (Entry(Access.READ, special="root"), Entry(Access.WRITE, special="project_roots"))
    root = os.fsencode(ws)
    intent = Intent(entries=entries, workspace_roots=(root,), network=network)
    profile = resolve(intent, root, Machine())
    code, said = held.run(profile, ["/usr/bin/python3", "-c", HEAD + script, *words], root)
    assert code == 0, said
    return said.decode().split()


def test_sockets_made_inside_work(held: Held, ws: Path) -> None:
    script = """
serve(listening("in"))
serve(listening(os.path.abspath("packets"), socket.SOCK_SEQPACKET))
serve(listening("\\0abstract"))
print(tried("in"), tried("./in", timeout=5), tried(os.path.abspath("in")))
print(tried("packets", socket.SOCK_SEQPACKET), tried("\\0abstract"))
os.symlink(os.path.abspath("in"), "link")
print(tried("link"), tried("nothing"), tried("\\0nothing"))
open("file", "w").close()
print(tried("file"), tried("packets"))
a, b = socket.socketpair()
a.send(b"PAIR")
print(b.recv(9).decode())
"""
    assert run(held, ws, script) == [
        *("INSIDE", "INSIDE", "INSIDE", "INSIDE", "INSIDE"),
        *("INSIDE", "FileNotFoundError", "ConnectionRefusedError"),
        *("ConnectionRefusedError", "OSError", "PAIR"),
    ]


def test_another_process_inside_is_found(held: Held, ws: Path) -> None:
    script = """
s = listening("in")
child = subprocess.Popen([sys.executable, "-c", '''
import socket, sys
s = socket.socket(fileno=int(sys.argv[1]))
print("ready", flush=True)
s.accept()[0].sendall(b"CHILD")
''', str(s.fileno())], pass_fds=[s.fileno()], stdout=subprocess.PIPE)
s.close()
child.stdout.readline()
print(tried("in"), child.wait())
"""
    assert run(held, ws, script) == ["CHILD", "0"]


def test_sockets_of_the_host_are_out_of_reach(held: Held, ws: Path) -> None:
    """Bound before, bound while it runs, renamed, linked and hidden behind a name of ours."""
    outside = Path(tempfile.mkdtemp(prefix="handrail-host-", dir="/var/tmp"))
    host = Host(outside / "s")
    near = Host(ws / "near")
    packets = Host(outside / "p", socket.SOCK_SEQPACKET)
    os.rename(outside / "s", outside / "renamed")
    late: list[Host] = []

    def bind_late() -> None:
        with open(ws / "told") as told:
            told.read(1)
        late.append(Host(outside / "late"))
        with open(ws / "done", "w") as done:
            done.write("x")

    os.mkfifo(ws / "told")
    os.mkfifo(ws / "done")
    thread = threading.Thread(target=bind_late)
    thread.start()
    script = """
outside = sys.argv[1]
print(tried(outside + "/renamed"), tried("near"), tried(outside + "/p", socket.SOCK_SEQPACKET))
serve(listening("mine"))
os.rename("mine", "elsewhere")
os.link("near", "mine")
print(tried("mine"), tried("elsewhere"))
os.rename("near", "moved")
os.symlink("moved", "over")
print(tried("moved"), tried("over"), tried("/proc/self/cwd/moved"))
open("told", "w").write("x")
open("done").read()
print(tried(outside + "/late"))
"""
    try:
        said = run(held, ws, script, str(outside))
    finally:
        for one in (host, near, packets, *late):
            one.close()
        thread.join()
        shutil.rmtree(outside)
    denied = "PermissionError"
    assert said[:7] == [denied, denied, denied, denied, "INSIDE", denied, denied]
    assert "HOST" not in said
    assert [one.visits for one in (host, near, packets, *late)] == [0, 0, 0, 0]
    known = {(d.kind, d.op, d.source, d.certain) for d in held.denials}
    assert known == {("network", "connect", "notify", True)}
    assert str(outside / "late") in {d.path for d in held.denials}


def test_a_relative_link_is_followed_inside(held: Held, ws: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as host:
        script = f"""
serve(listening("/dev/shm/inside.sock"))
os.symlink("/dev/shm/inside.sock", "link")
os.symlink("{host}", "host")
os.makedirs("a/b"); os.chdir("a/b")
print(tried("../../link"), tried("../../host"), tried("../../host/none"))
"""
        said = run(held, ws, script)
    # A directory of the host that is not there inside is not there at all.
    assert said == ["INSIDE", "FileNotFoundError", "FileNotFoundError"]


def test_swapping_what_was_looked_at_reaches_nobody(held: Held, ws: Path) -> None:
    """One thread exchanges names, sockets and the address itself while others connect."""
    host = Host(ws / "host")
    script = """
import ctypes, time
serve(listening("mine"))
os.rename("mine", "kept")
libc = ctypes.CDLL(None)
addresses = [b"\\1\\0" + name.encode().ljust(20, b"\\0") for name in ("kept", "host")]
shared = ctypes.create_string_buffer(addresses[0], 22)
done = False
def swap():
    n = 0
    while not done:
        n += 1
        ctypes.memmove(shared, addresses[n % 2], 22)
        try:
            os.link(("kept", "host")[n % 2], "new")
            os.rename("new", "name")
        except OSError:
            pass
        other = socket.socket(socket.AF_INET if n % 2 else socket.AF_UNIX)
        try: os.dup2(other.fileno(), 100)
        finally: other.close()
threading.Thread(target=swap).start()
reached = 0
until = time.monotonic() + 2
while time.monotonic() < until:
    reached += tried("name", timeout=1) == "HOST"
    s = socket.socket(socket.AF_UNIX)
    os.dup2(s.fileno(), 100)
    libc.connect(100, shared, 22)
    s.close()
done = True
print("reached", reached)
"""
    try:
        assert run(held, ws, script) == ["reached", "0"]
    finally:
        host.close()
    assert host.visits == 0


def test_a_connection_that_waits_holds_up_nobody(held: Held, ws: Path) -> None:
    script = """
full = listening("full", backlog=0)
serve(listening("in"))
said = []
waiting = [threading.Thread(target=lambda: said.append(tried("full"))) for _ in range(40)]
for one in waiting[:8]:  # fewer than are looked after at a time: the others do not wait for them
    one.start()
print(tried("in", timeout=5))
for one in waiting[8:]:
    one.start()
for _ in waiting:
    full.accept()[0].sendall(b"AFTER")
for one in waiting:
    one.join()
print(tried("in"), said.count("AFTER"))
"""
    assert run(held, ws, script) == ["INSIDE", "INSIDE", "40"]


def test_the_network_ends_at_its_own_loopback(held: Held, ws: Path) -> None:
    script = """
s = socket.socket()
s.bind(("127.0.0.1", 0))
s.listen()
c = socket.create_connection(s.getsockname(), 5)
s.accept()[0].sendall(b"LOOPBACK")
print(c.recv(20).decode())
plain = socket.socket()
plain.connect(s.getsockname())
for address in (("192.0.2.1", 80), ("127.0.0.1", 1)):
    try:
        socket.create_connection(address, 5)
    except OSError as error:
        print(error.errno)
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.bind(("127.0.0.1", 0))
v = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
v.connect(u.getsockname())
v.send(b"DATAGRAM")
print(u.recv(20).decode())
"""
    assert run(held, ws, script) == ["LOOPBACK", "101", "111", "DATAGRAM"]
    (denial,) = held.denials
    assert (denial.path, denial.source, denial.certain) == ("192.0.2.1:80", "notify", True)
    assert denial.host is not None
    assert (denial.host.name, denial.host.port, denial.host.comm) == ("192.0.2.1", 80, "python3")


def test_bad_arguments_fail_as_ever(held: Held, ws: Path) -> None:
    script = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def error(fd, address, length):
    assert libc.connect(fd, address, length) < 0
    return errno.errorcode[ctypes.get_errno()]
s = socket.socket(socket.AF_UNIX)
r, w = os.pipe()
text = b"\\1\\0in".ljust(200, b"\\0")
print(error(s.fileno(), text, 2), error(s.fileno(), text, 200), error(s.fileno(), text, 0))
print(error(s.fileno(), None, 5), error(999, text, 5), error(r, text, 5))
print(error(s.fileno(), b"\\2\\0in", 4), error(s.fileno(), text, -1))
"""
    assert run(held, ws, script) == [
        *("EINVAL", "EINVAL", "EINVAL", "EFAULT", "EBADF", "ENOTSOCK", "EINVAL", "EINVAL")
    ]


def test_an_open_network_opens_no_socket_of_the_host(held: Held, ws: Path) -> None:
    host = Host(ws / "host")
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0handrail-{os.getpid()}")
    abstract.listen()
    far = socket.create_server(("127.0.0.1", 0))
    script = """
serve(listening("in"))
print(tried("in"), tried("in", timeout=5), tried("host"), tried("\\0" + sys.argv[1]))
os.rename("in", "kept")
os.link("host", "in")
print(tried("in"), tried("kept"))
for timeout in (None, 5):
    s = socket.socket()
    s.settimeout(timeout)
    s.connect(("127.0.0.1", int(sys.argv[2])))
print("OUT")
"""
    try:
        words = (f"handrail-{os.getpid()}", str(far.getsockname()[1]))
        said = run(held, ws, script, *words, network=True)
    finally:
        host.close()
        abstract.close()
        far.close()
    denied, refused = "PermissionError", "ConnectionRefusedError"
    assert said == ["INSIDE", "INSIDE", denied, refused, denied, "INSIDE", "OUT"]
    assert host.visits == 0


def test_whoever_contains_a_command_is_out_of_its_reach(
    held: Held, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By every name of this machine, at once or later; but not in a network of its own."""
    script = """
import errno
for host in ("127.0.0.1", "127.0.0.9", "0.0.0.0", "localhost", "::1", "::ffff:127.0.0.1", "::"):
    for kind, timeout in ((socket.SOCK_STREAM, None), (socket.SOCK_STREAM, 2)):
        try:
            socket.create_connection((host, int(sys.argv[1])), timeout)
            print("reached", host)
        except OSError as error:
            if error.errno not in (errno.ECONNREFUSED, errno.EADDRNOTAVAIL):
                print(errno.errorcode[error.errno])
s = socket.socket()
for send in (lambda: s.sendto(b"x", 0x20000000, ("127.0.0.1", int(sys.argv[1]))),
             lambda: s.sendmsg([b"x"], [], 0x20000000, ("127.0.0.1", int(sys.argv[1])))):
    try:
        send(); print("sent")
    except OSError as error:
        print(errno.errorcode[error.errno])
"""
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as ours:
        port = str(ours.getsockname()[1])
        monkeypatch.setattr(listeners, "_counts", {int(port): 1})
        said = run(held, ws, script, port, network=True)
        assert set(said) == {"EACCES", "ENOTSUP"}
        assert len(said) == 16
        assert Denial("network", "connect", f"localhost:{port}", "notify", True) in held.denials
        assert set(run(held, ws, script, port)) == {"ENOTSUP"}
        ours.settimeout(0.1)
        with pytest.raises(TimeoutError):
            ours.accept()


def test_no_other_kind_of_socket_leads_there_either(
    held: Held, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sockets of several protocols, of a device, connected twice, connected when they send."""
    script = """
import errno
port, other = int(sys.argv[1]), int(sys.argv[2])
def tried(what, *addresses, proto=0, option=None, text=None):
    try:
        s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, proto)
    except OSError:
        return  # the kernel has none of this protocol
    with s:
        try:
            if option:
                s.setsockopt(*option)
            s.settimeout(5)
            for address in addresses:
                s.connect(address)
            if text:
                s.sendto(text, ("127.0.0.1", port))
            print(what, s.getpeername()[1] == port and "reached" or "elsewhere")
        except OSError as error:
            print(what, errno.errorcode[error.errno])
here, there = ("127.0.0.1", port), ("127.0.0.1", other)
tried("multipath", here, proto=262)
tried("shared-memory", here, proto=256)
tried("device", here, option=(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo"))
tried("late", here, option=(socket.IPPROTO_TCP, 30, 1))
tried("later", there, option=(socket.IPPROTO_TCP, 30, 1), text=b"GET")
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
s = socket.socket(); s.connect(there)
if libc.connect(s.fileno(), bytes(16), 16) == 0:  # AF_UNSPEC: taken back
    try:
        s.connect(here); print("again", "reached")
    except OSError as error:
        print("again", errno.errorcode[error.errno])
print("plain", "elsewhere" if not socket.create_connection(there, 5).close() else "")
"""
    with (
        socket.create_server(("127.0.0.1", 0)) as ours,
        socket.create_server(("127.0.0.1", 0)) as other,
    ):
        port, others = (str(sock.getsockname()[1]) for sock in (ours, other))
        monkeypatch.setattr(listeners, "_counts", {int(port): 1})
        said = run(held, ws, script, port, others, network=True)
        answers = dict(zip(said[::2], said[1::2], strict=True))
        assert "reached" not in answers.values()
        assert answers["again"] == answers["device"] == answers["late"] == "EACCES"
        assert answers["later"] == answers["plain"] == "elsewhere"
        ours.settimeout(0.1)
        with pytest.raises(TimeoutError):
            ours.accept()


def test_a_listener_that_was_opened_meanwhile_is_not_reached() -> None:
    """A call may wait for its turn after it was looked at."""
    with socket.create_server(("127.0.0.1", 0)) as ours, socket.socket() as client:
        port = listeners.enter(ours)
        listeners.leave(port)
        family = int(socket.AF_INET).to_bytes(2, sys.byteorder)
        address = family + port.to_bytes(2, "big") + socket.inet_aton("127.0.0.1") + bytes(8)
        call = ConnectCall(client.dup(), address, in_our_network=True)
        listeners.enter(ours)
        try:
            assert call.make() == errno.EACCES
        finally:
            listeners.leave(port)
        assert ConnectCall(client.dup(), address, in_our_network=True).make() == 0


def test_only_sockets_of_three_families_are_connected(held: Held, ws: Path) -> None:
    """We would do it with our own capabilities, such as that to forge messages of the kernel."""
    script = """
import errno
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
s.bind((0, 0))
try:
    s.connect((0, 1)); print("connected")
except OSError as error:
    print(errno.errorcode[error.errno])
print(bool(socket.if_nameindex()))
"""
    for network in (False, True):
        assert run(held, ws, script, network=network) == ["EPERM", "True"]


def test_a_signal_interrupts_as_ever(held: Held, ws: Path) -> None:
    """Restarted, or told EINTR: either way the caller gets its connection once."""
    script = """
import signal, time
class Alarm(Exception): pass
def stop(*_): raise Alarm
full = listening("full", backlog=0)
first = socket.socket(socket.AF_UNIX); first.connect("full")
signal.signal(signal.SIGALRM, stop)
signal.setitimer(signal.ITIMER_REAL, 0.2)
s = socket.socket(socket.AF_UNIX)
try:
    s.connect("full")
except Alarm:
    print("interrupted")
serve(listening("in"))
signal.signal(signal.SIGALRM, lambda *_: None)
signal.siginterrupt(signal.SIGALRM, False)
signal.setitimer(signal.ITIMER_REAL, 0.0007, 0.0007)
good = sum(tried("in") == "INSIDE" for _ in range(300))
signal.setitimer(signal.ITIMER_REAL, 0)
print(good)
"""
    assert run(held, ws, script) == ["interrupted", "300"]


def test_the_rehearsal_goes_well_where_sockets_work() -> None:
    rehearsal = Path(probe.__file__).parent / "syscalls" / "self_test.py"
    words = [sys.executable, "-I", "-S", str(rehearsal), probe.find_bubblewrap()]
    assert subprocess.run(words, check=False).returncode == 0


def test_a_command_may_be_over_before_anybody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", raised.append)
    before = os.listdir("/proc/self/fd")
    for _ in range(100):
        listener, other = os.pipe()
        attendance = LazySupervisor(listener)
        attendance.begin_alone()
        attendance.close()
        os.close(other)
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= len(before))
    assert raised == []


def test_nothing_is_done_for_a_caller_that_has_gone(
    held: Held, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = ConnectCalls.prepare

    def prepare_and_lose(connections: ConnectCalls, notice: notify.Notification) -> ConnectCall:
        call = prepare(connections, notice)
        pidfd = os.pidfd_open(notice.pid)
        os.kill(notice.pid, signal.SIGKILL)
        select.select([pidfd], [], [], 20)
        os.close(pidfd)
        return call

    monkeypatch.setattr(ConnectCalls, "prepare", prepare_and_lose)
    script = """
s = listening("in")
pid = os.fork()
if pid == 0:
    tried("in")
os.waitpid(pid, 0)
s.settimeout(0.5)
try:
    s.accept()
    print("connected")
except TimeoutError:
    print("nobody")
"""
    assert run(held, ws, script) == ["nobody"]

"""Pairs of datagram sockets inside: they work, and reach nobody but each other."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from handrail.network.inner_sockets import maker
from handrail.sandbox.profile import Access, Entry, Intent, Machine, resolve
from tests.support.eventually import eventually
from tests.support.sandboxes import Held

HEAD = """
import array, ctypes, errno, fcntl, os, resource, socket, struct, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
def pair(kind=socket.SOCK_DGRAM):
    return socket.socketpair(socket.AF_UNIX, kind)
def error(kind, place, protocol=0, family=1):
    assert libc.socketpair(family, kind, protocol, ctypes.c_void_p(place)) < 0
    return errno.errorcode[ctypes.get_errno()]
"""


def run(
    held: Held, ws: Path, script: str, *words: str, network: bool = False, watch: bool = False
) -> list[str]:
    entries = (Entry(Access.READ, special="root"), Entry(Access.WRITE, special="project_roots"))
    root = os.fsencode(ws)
    intent = Intent(entries=entries, workspace_roots=(root,), network=network)
    argv = ["/usr/bin/python3", "-c", HEAD + script, *words]
    code, said = held.run(resolve(intent, root, Machine()), argv, root, watch=watch)
    assert code == 0, said
    return said.decode().split()


@pytest.mark.parametrize("network", [False, True], ids=["apart", "network"])
@pytest.mark.parametrize("watch", [False, True], ids=["plain", "watched"])
def test_messages_keep_their_borders(held: Held, ws: Path, network: bool, watch: bool) -> None:
    script = """
for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):
    a, b = pair(kind)
    a.send(b"one"); a.sendmsg([b"t", b"wo"]); b.send(b"back")
    print(b.recv(99).decode(), b.recv(2).decode(), a.recv(99).decode())
r, w = os.pipe()
socket.send_fds(a, [b"fd"], [w])
_, (copy,), _, _ = socket.recv_fds(b, 9, 1)
os.write(copy, b"passed"); print(os.read(r, 9).decode())
if os.fork() == 0:
    b.send(b"child"); os._exit(0)
print(a.recv(9).decode())
"""
    said = run(held, ws, script, network=network, watch=watch)
    assert said == ["one", "tw", "back", "one", "tw", "back", "passed", "child"]


@pytest.mark.parametrize("network", [False, True], ids=["apart", "network"])
def test_an_address_leads_nowhere(held: Held, ws: Path, network: bool) -> None:
    """However it is sent: to a path, hidden behind a name of ours, and to an abstract name."""
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as host,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as abstract,
    ):
        host.bind(str(ws / "host"))
        os.chmod(ws / "host", 0o777)
        name = f"handrail-pairs-{os.getpid()}"
        abstract.bind("\0" + name)
        script = """
a, b = pair()
class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_char_p), ("length", ctypes.c_size_t)]
class Message(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("namelen", ctypes.c_uint),
                ("iov", ctypes.POINTER(Vector)), ("iovlen", ctypes.c_size_t),
                ("control", ctypes.c_void_p), ("controllen", ctypes.c_size_t),
                ("flags", ctypes.c_int), ("sent", ctypes.c_uint)]
sent = 0
for path in (b"host", os.fsencode(os.path.abspath("host")), b"\\0" + os.fsencode(sys.argv[1])):
    for way in range(3):
        try:
            if way == 0: a.sendto(b"OUT", path)
            if way == 1: a.sendmsg([b"OUT"], [], 0, path)
            if way == 2:
                raw = b"\\1\\0" + path
                v = Vector(b"OUT", 3)
                m = (Message * 1)(Message(raw, len(raw), ctypes.pointer(v), 1))
                assert libc.sendmmsg(a.fileno(), m, 1, 0) == 1
            sent += 1
        except OSError as e: print(e)
    for again in (lambda: a.connect(path), lambda: a.connect_ex(path)):
        try: again()
        except OSError: pass
print(sent, [b.recv(9) for _ in range(sent)].count(b"OUT"))
"""
        assert run(held, ws, script, name, network=network) == ["9", "9"]
        for outside in (host, abstract):
            outside.setblocking(False)
            with pytest.raises(BlockingIOError):
                outside.recv(9)


def test_single_datagram_sockets_stay_refused(held: Held, ws: Path) -> None:
    script = """
for kind in (2, 3, 2 | socket.SOCK_CLOEXEC):
    try: socket.socket(socket.AF_UNIX, kind); print("made")
    except PermissionError: print("refused")
"""
    assert run(held, ws, script) == ["refused"] * 3


def test_flags_are_kept(held: Held, ws: Path) -> None:
    script = """
for flags in (0, socket.SOCK_CLOEXEC, socket.SOCK_NONBLOCK):
    numbers = (ctypes.c_int * 2)()
    assert libc.socketpair(1, 2 | flags, 0, numbers) == 0
    fds = list(numbers)
    print(*(fcntl.fcntl(fd, fcntl.F_GETFD) for fd in fds),
          *(bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK) for fd in fds))
"""
    said = " ".join(run(held, ws, script))
    assert said == "0 0 False False 1 1 False False 0 0 True True"


def test_bad_arguments_fail_as_ever(held: Held, ws: Path) -> None:
    script = """
good = (ctypes.c_int * 2)(-7, -7)
place = ctypes.addressof(good)
before = os.listdir("/proc/self/fd")
print(error(2, 0), error(2, 8), error(2, 1 << 46), error(2, -1), error(2, 0xffff800000000000))
print(error(2, place, 5), error(2 | 0o4, place), error(2 | 1 << 20, place), error(4, place))
print(error(2, place, 0, 2), error(2, 0, 5))
print(*good, os.listdir("/proc/self/fd") == before)
"""
    assert run(held, ws, script) == [
        *("EFAULT", "EFAULT", "EFAULT", "EFAULT", "EFAULT"),
        *("EPROTONOSUPPORT", "EPERM", "EINVAL", "EPERM"),
        *("EPERM", "EFAULT", "-7", "-7", "True"),
    ]


def test_a_full_table_stays_as_it_was(held: Held, ws: Path) -> None:
    script = """
used = len(os.listdir("/proc/self/fd")) - 1
most = max(map(int, os.listdir("/proc/self/fd"))) + 8
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
kept = []
while True:
    try: kept.append(pair())
    except OSError as e: print(errno.errorcode[e.errno]); break
spare = []
while True:
    try: spare.append(os.dup(0))
    except OSError: break
print(len(spare) < 2)
for fd in spare: os.close(fd)
kept.pop()
a, b = pair(); a.send(b"again"); print(b.recv(9).decode())
"""
    assert run(held, ws, script) == ["EMFILE", "True", "again"]


def test_threads_and_signals_disturb_nobody(held: Held, ws: Path) -> None:
    script = """
import signal
signal.signal(signal.SIGALRM, lambda *_: None)
signal.siginterrupt(signal.SIGALRM, False)
signal.setitimer(signal.ITIMER_REAL, 0.0007, 0.0007)
good = []
def work():
    for n in range(50):
        a, b = pair()
        a.send(b"%d" % n)
        good.append(b.recv(9) == b"%d" % n)
        a.close(); b.close()
threads = [threading.Thread(target=work) for _ in range(4)]
for one in threads: one.start()
work()
for one in threads: one.join()
signal.setitimer(signal.ITIMER_REAL, 0)
print(good.count(True))
"""
    assert run(held, ws, script) == ["250"]


def test_it_shows_no_network_of_the_host(held: Held, ws: Path) -> None:
    script = """
a, b = pair()
print(*(name for _, name in socket.if_nameindex()))
place = array.array("B", bytes(4096))
asked = struct.pack("iL", 4096, place.buffer_info()[0])
length = struct.unpack_from("i", fcntl.ioctl(a, 0x8912, asked))[0]  # SIOCGIFCONF
text = place.tobytes()
print(*(text[n : n + 16].rstrip(b"\\0").decode() for n in range(0, length, 40)))
a.bind("\\0taken"); s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
try: s.bind("\\0taken")
except OSError as e: print(errno.errorcode[e.errno])
"""
    assert run(held, ws, script) == ["lo", "lo", "EADDRINUSE"]


def test_what_makes_them_ends_with_each(
    held: Held, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    makers: list[int] = []
    start = maker._start

    def noted(line: int, network: int, kinds: Sequence[str]) -> int:
        makers.append(start(line, network, kinds))
        return makers[-1]

    monkeypatch.setattr(maker, "_start", noted)
    assert run(held, ws, "print('planned')") == ["planned"]
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        assert run(held, ws, "pair(); print('ok')") == ["ok"]
    assert len(makers) == 3
    for pid in makers:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= len(before))  # mounts are closed later


def test_where_no_stub_can_run_python_makes_them(
    held: Held, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maker.seccomp_spawn, "startable", lambda: False)
    script = """
a, b = pair(socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
c, d = pair()
a.send(b"one"); c.send(b"two"); print(b.recv(9).decode(), d.recv(9).decode())
print(os.get_blocking(a.fileno()), os.get_blocking(b.fileno()), os.get_blocking(c.fileno()))
"""
    assert run(held, ws, script) == ["one", "two", "False", "False", "True"]


def test_where_they_cannot_be_made_they_are_refused(
    held: Held, ws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maker.seccomp_spawn, "startable", lambda: False)
    monkeypatch.setattr(maker.sys, "executable", "/bin/false")  # type: ignore[attr-defined]
    script = """
for _ in range(2):
    try: pair(); print("made")
    except PermissionError: print("refused")
a, b = pair(socket.SOCK_SEQPACKET); print(a.send(b"x"))
"""
    assert run(held, ws, script) == ["refused", "refused", "1"]


def test_a_caller_that_lets_nobody_look_is_refused_or_served(held: Held, ws: Path) -> None:
    script = """
libc.prctl(4, 0, 0, 0, 0)
try: a, b = pair(); a.send(b"x"); print(b.recv(1) == b"x")
except PermissionError: print(True)
"""
    assert run(held, ws, script) == ["True"]

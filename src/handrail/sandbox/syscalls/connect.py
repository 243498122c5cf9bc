"""Connecting for a command that is not let out of its sandbox.

A mount cannot keep anybody from a Unix socket: ``connect`` asks for write permission of the
socket's inode and nothing else, however read-only the mount is, and sockets of the host come and
go while a command runs.  So no ``connect`` is made by the command itself.  Each one is announced
(``notify.py``) and made here, on a copy of the caller's own socket:

* a socket with a name in the file system only if somebody *inside* listens on that very inode.
  The inode is asked of the listening socket, not of its name, and the connection is made to the
  inode that was looked at: whatever is renamed, linked or replaced meanwhile changes nothing;
* an abstract name only in a network namespace of its own, where all of them were made inside;
* what this very process listens on not at all: it starts commands for its clients;
* by a socket of another kind (netlink) not at all: the kernel would look at *our* capabilities;
* every other address of IPv4 and IPv6 as it was asked for.  A socket belongs to the network
  namespace it was made in, so it reaches nothing that the command's own would not.

Datagrams could be sent elsewhere without a ``connect``; single Unix sockets of that kind cannot be
made in a sandbox at all (``seccomp_filter.py``), and pairs are of another kind (``socketpair.py``).
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import sys
from collections.abc import Iterable

from handrail.filesystem import syscalls
from handrail.sandbox.bwrap.instance import family_of
from handrail.sandbox.syscalls import notify
from handrail.sandbox.syscalls.server_ports import is_ours
from handrail.sandbox.syscalls.unix_socket_inode import is_bound_to

_UNIX = int(socket.AF_UNIX).to_bytes(2, sys.byteorder)
#: Of sockets, and of the addresses that sockets other than Unix ones are given; without a family
#: an address takes a connection back.
_FAMILIES = frozenset(map(int, (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)))
_INTERNET = frozenset(map(int, (socket.AF_UNSPEC, socket.AF_INET, socket.AF_INET6)))
_SO_DOMAIN = 39
_SO_NETNS_COOKIE = 71  # since Linux 5.14
_RESOLVE_IN_ROOT = 0x10
_LONGEST_ADDRESS = 128
#: Inodes that were found to be listened on inside, and are not looked for again.
_MOST_KNOWN = 64


class ConnectCalls:
    """What one sandbox may connect to."""

    def __init__(self) -> None:
        #: Device and inode -> a descriptor, without which the number could become another's.
        self._known: dict[tuple[int, int], int] = {}

    def close(self) -> None:
        while self._known:
            os.close(self._known.popitem()[1])

    def prepare(self, notice: notify.Notification) -> ConnectCall:
        """Everything up to the ``connect`` itself; raises OSError with what the caller is told."""
        number, address, length = notice.arguments[:3]
        length &= 0xFFFFFFFF
        if length > _LONGEST_ADDRESS:
            raise OSError(errno.EINVAL, "an address that is too long")
        pidfd = notify.thread_group(notice.pid)
        try:
            sock = socket.socket(fileno=notify.descriptor_of(pidfd, number & 0xFFFFFFFF))
        finally:
            os.close(pidfd)
        try:
            family = sock.getsockopt(socket.SOL_SOCKET, _SO_DOMAIN)
            if family not in _FAMILIES:
                raise PermissionError(errno.EPERM, "a socket that is never connected from here")
            raw = notify.memory(notice.pid, address, length)
            if family == socket.AF_UNIX:
                # With another family the kernel takes no such address for such a socket.
                if raw[:2] == _UNIX and len(raw) > 2:
                    path = raw[2:].partition(b"\0")[0]
                    if path:
                        return ConnectCall(sock, raw, self._inode(notice.pid, path))
                    if _is_in_our_network(sock, notice.pid):
                        raise ConnectionRefusedError(errno.ECONNREFUSED, "a name of the host")
            elif int.from_bytes(raw[:2], sys.byteorder) not in _INTERNET:
                raise OSError(errno.EAFNOSUPPORT, "an address of another family")
            elif _leads_to_us(sock, raw, notice.pid):
                here = b"localhost:%d" % int.from_bytes(raw[2:4], "big")
                raise PermissionError(errno.EACCES, "where we listen ourselves", here)
            return ConnectCall(sock, raw, pid=notice.pid)
        except BaseException:
            sock.close()
            raise

    def _inode(self, pid: int, path: bytes) -> int:
        """A descriptor of the socket at a path of the caller's, if it was made inside."""
        target = _open(pid, path)
        try:
            status = os.fstat(target)
            if not stat.S_ISSOCK(status.st_mode):
                raise ConnectionRefusedError(errno.ECONNREFUSED, "no socket")
            key = status.st_dev, status.st_ino
            if key not in self._known:
                if not _made_inside(pid, status):
                    raise PermissionError(errno.EACCES, "a socket of the host", path)
                if len(self._known) >= _MOST_KNOWN:
                    os.close(self._known.pop(next(iter(self._known))))
                self._known[key] = os.dup(target)
        except BaseException:
            os.close(target)
            raise
        return target


class ConnectCall:
    """One connection that may be made."""

    def __init__(
        self, sock: socket.socket, address: bytes, inode: int = -1, *, pid: int = 0
    ) -> None:
        self._sock = sock
        self._inode = inode
        self._pid = pid
        self.address = address
        #: Of the socket, as long as it is there.
        self.identity = os.fstat(sock.fileno()).st_ino
        #: Whether it may take a while, because its caller has said that it can wait.
        self.waits = not fcntl.fcntl(sock, fcntl.F_GETFL) & os.O_NONBLOCK

    def make(self) -> int:
        """Connect; the error for the caller, or 0."""
        try:
            if self._inode >= 0:
                self._sock.connect(b"/proc/self/fd/%d" % self._inode)
                return 0
            # Again: it may have waited for its turn, and a listener been opened meanwhile.
            if _leads_to_us(self._sock, self.address, self._pid):
                return errno.EACCES
            return notify.connect(self._sock.fileno(), self.address)
        except OSError as error:
            return error.errno or errno.EINVAL
        finally:
            self.close()

    def close(self) -> None:
        self._sock.close()
        if self._inode >= 0:
            os.close(self._inode)
            self._inode = -1


def _open(pid: int, path: bytes) -> int:
    """What is at a path as that process sees it; raises OSError as ``connect`` would."""
    if not path.startswith(b"/"):
        # From its root as well: a link on the way may be absolute, and must not lead into ours.
        path = os.readlink(b"/proc/%d/cwd" % pid) + b"/" + path
    root = os.open(b"/proc/%d/root" % pid, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return syscalls.openat2(root, path, os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT)
    finally:
        os.close(root)


def _leads_to_us(sock: socket.socket, address: bytes, pid: int) -> bool:
    return is_ours(address) and _is_in_our_network(sock, pid)


def _is_in_our_network(sock: socket.socket, pid: int) -> bool:
    """Whether this socket of a process was made in our network; a process may be given others."""
    try:
        with socket.socket(socket.AF_UNIX) as ours:
            cookies = [
                one.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8) for one in (sock, ours)
            ]
    except OSError:
        return shares_our_network(pid)
    return cookies[0] == cookies[1]


def shares_our_network(pid: int) -> bool:
    """Whether this process has no network of its own; nobody knows of one that has ended."""
    try:
        theirs, ours = (os.stat(f"/proc/{who}/ns/net") for who in (pid, "self"))
    except OSError:
        return True
    return theirs.st_ino == ours.st_ino


def _made_inside(pid: int, inode: os.stat_result) -> bool:
    """Whether a process of the same sandbox listens there."""
    seen: set[int] = set()
    for process in family_of(pid):
        try:
            if _listens(process, inode, seen):
                return True
        except OSError:
            continue  # it has ended
    return False


def _listens(pid: int, inode: os.stat_result, seen: set[int]) -> bool:
    pidfd = os.pidfd_open(pid)
    try:
        for number in _sockets(pid):
            try:
                fd = notify.descriptor_of(pidfd, number)
            except OSError:
                continue  # closed meanwhile, or none
            status = os.fstat(fd)
            if not stat.S_ISSOCK(status.st_mode) or status.st_ino in seen:
                os.close(fd)
                continue
            seen.add(status.st_ino)
            with socket.socket(fileno=fd) as sock:
                if sock.family != socket.AF_UNIX:
                    continue
                listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                if listens and is_bound_to(sock, inode):
                    return True
    finally:
        os.close(pidfd)
    return False


def _sockets(pid: int) -> Iterable[int]:
    """The numbers of a process's sockets; all it can have if it lets nobody look, as agents do."""
    place = b"/proc/%d/fd" % pid
    try:
        names = os.listdir(place)
    except PermissionError:
        with open(f"/proc/{pid}/status", "rb") as file:
            return range(next(int(line[7:]) for line in file if line.startswith(b"FDSize:")))
    return [int(name) for name in names if _is_socket(place + b"/" + name)]


def _is_socket(place: bytes) -> bool:
    try:
        return os.readlink(place).startswith(b"socket:")
    except PermissionError:
        return True  # perhaps: it has stopped letting us look
    except OSError:
        return False  # closed meanwhile

"""Make the ``connect`` calls of a sandboxed command, after checking their targets.

A mount cannot protect a Unix socket: ``connect`` needs write permission on the socket's inode and
nothing else, however read-only the mount is, and sockets of the host come and go while a command
runs.  So the command never makes a ``connect`` itself.  The kernel reports each one (``notify.py``)
and the supervisor makes it here, on a copy of the caller's own socket:

* a path: only if a process of the same sandbox listens on that inode.  The inode is read from the
  listening socket, not from its path, and the connection goes to the inode that was checked, so a
  rename, link or replacement meanwhile changes nothing;
* an abstract name: only in a network namespace of its own, where the sandbox made all of them;
* a listener of this process: never, since it starts commands for its clients;
* a socket of another kind (netlink): never, the kernel would check *our* capabilities;
* every other IPv4 and IPv6 address: as requested.  A socket belongs to the network namespace it was
  made in, so it reaches nothing that the command itself could not.

Datagrams could be sent elsewhere without a ``connect``; a sandbox cannot make single Unix sockets
of that kind (``seccomp_filter.py``), and pairs are of another kind (``socketpair.py``).
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
from handrail.keeper.proc_children import descendants_of, pid_namespace, stat_fields
from handrail.sandbox.syscalls import notify
from handrail.sandbox.syscalls.server_ports import is_ours
from handrail.sandbox.syscalls.unix_socket_inode import is_bound_to

_UNIX = int(socket.AF_UNIX).to_bytes(2, sys.byteorder)
#: Families of sockets, and of the addresses that non-Unix sockets accept; AF_UNSPEC disconnects.
_FAMILIES = frozenset(map(int, (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)))
_INTERNET = frozenset(map(int, (socket.AF_UNSPEC, socket.AF_INET, socket.AF_INET6)))
_SO_DOMAIN = 39
_SO_NETNS_COOKIE = 71  # since Linux 5.14
_RESOLVE_IN_ROOT = 0x10
_LONGEST_ADDRESS = 128
#: Inodes that are known to be listened on in the sandbox, and are not looked up again.
_MOST_KNOWN = 64


class ConnectCalls:
    """Checks the ``connect`` calls of one sandbox."""

    def __init__(self) -> None:
        #: (device, inode) -> an open fd, without which the inode number could be reused.
        self._known: dict[tuple[int, int], int] = {}
        #: What the kernel calls our network namespace; None: it has no such names.
        self._our_cookie = _our_cookie()

    def close(self) -> None:
        while self._known:
            os.close(self._known.popitem()[1])

    def prepare(self, notice: notify.Notification) -> ConnectCall:
        """Do everything up to the ``connect`` itself; raises OSError with the caller's errno."""
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
                # The kernel itself refuses an address of another family for a Unix socket.
                if raw[:2] == _UNIX and len(raw) > 2:
                    path = raw[2:].partition(b"\0")[0]
                    if path:
                        return ConnectCall(sock, raw, self._inode(notice.pid, path))
                    if self._is_in_our_network(sock, notice.pid):
                        raise ConnectionRefusedError(errno.ECONNREFUSED, "a name of the host")
                return ConnectCall(sock, raw)
            if int.from_bytes(raw[:2], sys.byteorder) not in _INTERNET:
                raise OSError(errno.EAFNOSUPPORT, "an address of another family")
            shared = self._is_in_our_network(sock, notice.pid)
            if shared and is_ours(raw):
                here = b"localhost:%d" % int.from_bytes(raw[2:4], "big")
                raise PermissionError(errno.EACCES, "where we listen ourselves", here)
            return ConnectCall(sock, raw, in_our_network=shared)
        except BaseException:
            sock.close()
            raise

    def _is_in_our_network(self, sock: socket.socket, pid: int) -> bool:
        """Whether a socket was made in our network namespace; a process may receive others."""
        try:
            cookie = sock.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8)
        except OSError:
            return shares_our_network(pid)
        return cookie == self._our_cookie

    def _inode(self, pid: int, path: bytes) -> int:
        """Open the socket at the caller's path, if a process of the sandbox listens on it."""
        target = _open(pid, path)
        try:
            status = os.fstat(target)
            if not stat.S_ISSOCK(status.st_mode):
                raise ConnectionRefusedError(errno.ECONNREFUSED, "no socket")
            key = status.st_dev, status.st_ino
            if key not in self._known:
                if not _is_listened_on(pid, status):
                    raise PermissionError(errno.EACCES, "a socket of the host", path)
                if len(self._known) >= _MOST_KNOWN:
                    os.close(self._known.pop(next(iter(self._known))))
                self._known[key] = os.dup(target)
        except BaseException:
            os.close(target)
            raise
        return target


class ConnectCall:
    """One ``connect`` that is allowed."""

    def __init__(
        self,
        sock: socket.socket,
        address: bytes,
        inode: int = -1,
        *,
        in_our_network: bool = False,
    ) -> None:
        self._sock = sock
        self._inode = inode
        self._in_our_network = in_our_network
        self.address = address
        #: The socket's inode number, valid while the socket is open.
        self.identity = os.fstat(sock.fileno()).st_ino
        #: Whether it may block: the caller's socket is in blocking mode.
        self.waits = not fcntl.fcntl(sock, fcntl.F_GETFL) & os.O_NONBLOCK

    def make(self) -> int:
        """Connect; return the errno for the caller, or 0."""
        try:
            if self._inode >= 0:
                self._sock.connect(b"/proc/self/fd/%d" % self._inode)
                return 0
            # Checked again: a listener may have been opened while this call waited for its turn.
            if self._in_our_network and is_ours(self.address):
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
    """Open a path as that process sees it; raises OSError as ``connect`` would."""
    if not path.startswith(b"/"):
        # Resolved from its root too: a symlink on the way may be absolute, and must not lead to
        # ours.
        path = os.readlink(b"/proc/%d/cwd" % pid) + b"/" + path
    root = os.open(b"/proc/%d/root" % pid, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return syscalls.openat2(root, path, os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT)
    finally:
        os.close(root)


def _our_cookie() -> bytes | None:
    try:
        with socket.socket(socket.AF_UNIX) as ours:
            return ours.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8)
    except OSError:
        return None


def shares_our_network(pid: int) -> bool:
    """Whether this process is in our network namespace; assumed if it has exited."""
    try:
        theirs, ours = (os.stat(f"/proc/{who}/ns/net") for who in (pid, "self"))
    except OSError:
        return True
    return theirs.st_ino == ours.st_ino


def _is_listened_on(pid: int, inode: os.stat_result) -> bool:
    """Whether a process of the same sandbox listens on this inode."""
    seen: set[int] = set()
    for process in _family_of(pid):
        try:
            if _listens(process, inode, seen):
                return True
        except OSError:
            continue  # the process has exited
    return False


def _family_of(pid: int) -> list[int]:
    """All processes in the same sandbox as this one."""
    first, namespace = pid, pid_namespace(pid)
    while namespace:
        parent = int(stat_fields(first)[1])
        if pid_namespace(parent) != namespace:
            break
        first = parent
    return [first, *descendants_of(first)]


def _listens(pid: int, inode: os.stat_result, seen: set[int]) -> bool:
    pidfd = os.pidfd_open(pid)
    try:
        for number in _sockets(pid):
            try:
                fd = notify.descriptor_of(pidfd, number)
            except OSError:
                continue  # closed meanwhile, or not open
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
    """List a process's socket fds; if /proc/PID/fd is unreadable, all fds it can have."""
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
        return True  # perhaps: /proc/PID/fd has become unreadable
    except OSError:
        return False  # closed meanwhile

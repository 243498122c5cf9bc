"""Where a server and its keeper find each other again.

One directory, one lock, one keeper.  A directory that was named is taken or refused; from a
server that is stopped or does not answer it is taken by force.  Without a name one of the user's
own is taken: where a crash has left a keeper, best of a server that listened where we shall, else
the first that nobody holds.  So several servers on one machine do not meet, and one that follows
a crash finds what the crash has left.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import time
from collections.abc import Collection

from handrail import private_places
from handrail.errors import UsageError
from handrail.process.keeper_client.start import (
    KeeperHandle,
    KeeperSilent,
    claim_lease,
    find_keeper,
    holder_of,
    start_keeper,
)
from handrail.server import session_temp
from handrail.server.recovery import orphan_sweep

log = logging.getLogger(__name__)

_MOST_SERVERS = 4096
#: Of a socket's name, less what we add.
_LONGEST_NAME = 90
#: How long a lock may outlive the process that had it.
_LOCK_SECONDS = 5.0
_SOCKET = "keeper.sock"
_STARTS = "starts"
_ADDRESS = "address"
#: So many crashes at the start in so many seconds are enough.
BUDGET = 3
BUDGET_SECONDS = 60.0


class StateDir:
    """A directory that is ours until we end."""

    def __init__(self, path: str, fd: int, lock: int) -> None:
        self.path = path
        self.fd = fd
        self._lock = lock
        #: What our keeper and clients by a Unix socket prove to know; made with the first keeper.
        self.secret = b""
        self.claimed: KeeperHandle | None = None
        self._started = False

    @property
    def _socket(self) -> str:
        # By descriptor: a socket's name is limited to 107 bytes, a directory's is not.
        return private_places.socket_address(self.fd, _SOCKET)

    def keeper(self, orphan_ttl: float) -> KeeperHandle:
        """The keeper of this directory: the one that is alive, or a new one."""
        claimed, self.claimed = self.claimed, None
        found = claimed or self.find()
        self._started = self._started or found is not None
        self._make_secret()
        return found._replace(secret=self.secret) if found else self._start(orphan_ttl)

    def keeper_after_loss(self, orphan_ttl: float) -> KeeperHandle:
        """Another keeper when the one that was found is gone, and nothing of it was taken over."""
        self._started = False
        return self.keeper(orphan_ttl)

    def find(self, *, wait: bool = True) -> KeeperHandle | None:
        return find_keeper(self._socket, private_places.read_secret(self.fd), wait=wait)

    def _make_secret(self) -> None:
        try:
            self.secret = private_places.make_secret(self.fd)
        except OSError as error:
            log.error(
                "no secret can be kept in %s (%s), so neither this server nor its keeper can prove"
                " that it is ours; make room, or remove the file `secret` there",
                self.path,
                error.strerror,
            )

    def begin(self) -> None:
        """Note that we start; raises UsageError when that went wrong too often just now.

        Whoever restarts a server that crashes at its start would do it for ever, and each time
        take the children from nobody to nobody.
        """
        now = time.monotonic()
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        try:
            file = private_places.open_file(self.fd, _STARTS, flags)
        except OSError:
            return  # a full disk keeps nobody from their processes
        try:
            times = _numbers(os.read(file, 65_536))
            if sum(now - BUDGET_SECONDS < at <= now for at in times) >= BUDGET:
                raise UsageError(
                    f"the server has crashed {BUDGET} times in {BUDGET_SECONDS:.0f} s while it"
                    " started; its processes are untouched; look into its log, then remove"
                    f" {os.path.join(self.path, _STARTS)} to try at once"
                )
            with contextlib.suppress(OSError):  # as above
                os.write(file, b"%f\n" % now)
        finally:
            os.close(file)

    def ready(self) -> None:
        """We have started."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_STARTS, dir_fd=self.fd)

    def at_work(self, mark: int) -> None:
        """A keeper of this mark serves us; see ``orphan_sweep.py``."""
        try:
            orphan_sweep.remember(self.fd, mark)
        except OSError as error:
            log.error(
                "%s cannot be written (%s): should server and keeper be killed at once, what they"
                " leave will not be ended by the next",
                self.path,
                error.strerror,
            )

    def end_others(self, mark: int, known: Collection[int]) -> int:
        """End what keepers other than the one with this mark have left; see ``orphan_sweep.py``."""
        try:
            return orphan_sweep.end_others(self.fd, mark, known)
        except OSError as error:
            log.error(
                "%s cannot be read (%s): what a keeper before has left is not ended",
                os.path.join(self.path, "marks"),
                error.strerror,
            )
            return 0

    def done(self) -> None:
        """The keeper has ended with everything it had; one before it may have died."""
        self.clear()

    def clear(self) -> None:
        """End and remove what a server and a keeper that were both killed have left."""
        orphan_sweep.end(self.fd)
        session_temp.clear_all(self.fd)

    def _start(self, orphan_ttl: float) -> KeeperHandle:
        if not self._started:  # else we have lost our keeper, and its children are ours
            self.clear()
            self._started = True
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_SOCKET, dir_fd=self.fd)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with listener:
            before = os.umask(0o177)
            try:
                listener.bind(self._socket)
            finally:
                os.umask(before)
            listener.listen(16)
            keeper_log = self._open_log()
            try:
                return start_keeper(
                    listener=listener, orphan_ttl=orphan_ttl, log=keeper_log, secret=self.secret
                )
            finally:
                if keeper_log is not None:
                    os.close(keeper_log)

    def _open_log(self) -> int | None:
        """Where the keeper says what went wrong; without it the keeper is as good."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        try:
            return private_places.open_file(self.fd, "keeper.log", flags)
        except OSError as error:
            log.error(
                "%s/keeper.log is not used (%s), so the keeper has no log; remove it",
                self.path,
                error.strerror,
            )
            return None

    @property
    def lock(self) -> int:
        return self._lock

    def close(self) -> None:
        """Let others have it."""
        os.close(self._lock)
        os.close(self.fd)


def claim(path: str | None, address: str = "") -> StateDir:
    """Take the directory that was named, or one of our own; raises UsageError.

    ``address``: where we shall listen, by which a server finds its own again.
    """
    if path is not None:
        return _take(path) or _take_over(path)
    base = _base()
    taken = _left_by_a_crash(base, address) or _first_free(base)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with (
        contextlib.suppress(OSError),
        open(private_places.open_file(taken.fd, _ADDRESS, flags), "w") as file,
    ):
        file.write(address)
    return taken


def _left_by_a_crash(base: str, address: str) -> StateDir | None:
    """A directory in which a keeper waits for its next server."""
    places = []
    with contextlib.suppress(OSError):
        for name in filter(str.isdigit, os.listdir(base)):
            place = os.path.join(base, name)
            if os.path.lexists(os.path.join(place, _SOCKET)):
                places.append((_address_of(place) != address, int(name), place))
    for foreign, _, place in sorted(places):
        taken = _take(place)
        if taken is None:
            continue  # its server is there
        try:
            taken.claimed = taken.find(wait=not foreign)
        except KeeperSilent as silent:
            log.error("%s", silent)
            taken.close()
            continue  # of a server that listened elsewhere: it is not needed here
        except BaseException:
            taken.close()
            raise
        if taken.claimed is not None:
            return taken
        taken.clear()  # its keeper is dead as well, and no server might ever take this one
        taken.close()
    return None


def _address_of(place: str) -> str | None:
    try:
        directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            with open(private_places.open_file(directory, _ADDRESS, os.O_RDONLY)) as file:
                return file.read()
        finally:
            os.close(directory)
    except (OSError, ValueError):
        return None


def _first_free(base: str) -> StateDir:
    for number in range(_MOST_SERVERS):
        taken = _take(os.path.join(base, str(number)))
        if taken is not None:
            return taken
    raise UsageError(f"{_MOST_SERVERS} servers are running under {base}; stop some of them")


def inherit(path: str, lock: int) -> StateDir:
    """The directory of a server that hands over to us, with the lock it holds."""
    private_places.add(path, directory=True)
    return StateDir(path, private_places.open_directory(path), lock)


def in_use(path: str) -> bool:
    """Whether a server has this directory; a server that starts may meet us here, so briefly."""
    lock = os.open(os.path.join(path, "lock"), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def running(path: str | None) -> tuple[str, KeeperHandle]:
    """The keeper of a directory that is in use; without a name there must be only one."""
    if path is not None:
        names = [path]
    else:
        base, names = _base(), []
        with contextlib.suppress(OSError):
            names = sorted(os.path.join(base, name) for name in os.listdir(base))
    found = []
    for name in names:
        handle = _keeper_in(name)
        if handle is not None:
            found.append((name, handle))
    if len(found) == 1:
        return found[0]
    for _, handle in found:
        handle.sock.close()
    if not found:
        raise UsageError("no server is running; start one with `handrail serve`")
    raise UsageError(
        "several servers are running; name one with --state-dir: "
        + ", ".join(name for name, _ in found)
    )


def holder(path: str) -> int:
    """The pid of the server that holds the keeper of this directory, whichever that is, or 0."""
    # Asked again and again while one of an earlier version is replaced and given its secret.
    handle = _keeper_in(path, report=False)
    if handle is None:
        return 0
    with handle.sock:
        return holder_of(handle)


def _keeper_in(path: str, *, report: bool = True) -> KeeperHandle | None:
    """The keeper of a directory that another process may hold."""
    return find_keeper(f"{path}/{_SOCKET}", private_places.secret_in(path), report=report)


def _take_over(path: str) -> StateDir:
    """Take a directory from a server that is stuck; raises UsageError when it is not."""
    handle = _keeper_in(path) if len(path) < _LONGEST_NAME else None
    reason = "" if handle is None else claim_lease(handle)
    if handle is not None and reason is None:
        deadline = time.monotonic() + _LOCK_SECONDS
        while time.monotonic() < deadline:
            taken = _take(path)
            if taken is not None:
                taken.claimed = handle
                return taken
            time.sleep(0.01)
    if handle is not None:
        handle.sock.close()
    raise UsageError(
        f"the state directory {path} is in use by another server; stop it, or give"
        " this one another --state-dir" + (f" ({reason})" if reason else "")
    )


def _base() -> str:
    return os.path.join(private_places.state_home(), "servers")


def _take(path: str) -> StateDir | None:
    try:
        fd = private_places.open_directory(path)
    except private_places.NotOurs as error:
        raise UsageError(
            f"cannot use the state directory {path}: {error.reason}; give another --state-dir"
        ) from None
    private_places.add(path, directory=True)
    try:
        lock = private_places.open_file(fd, "lock", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        os.close(fd)
        raise UsageError(
            f"the state directory {path} cannot be locked: {error.strerror}; remove the file `lock`"
            " in it, or give another --state-dir"
        ) from None
    except BaseException:
        os.close(fd)
        raise
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        os.close(fd)
        return None
    except OSError as error:
        os.close(lock)
        os.close(fd)
        raise UsageError(
            f"the state directory {path} cannot be locked ({error.strerror}), so that two servers"
            " might use it at once; name one with --state-dir on a file system with locks, and"
            " allow flock in the seccomp profile of a container"
        ) from None
    return StateDir(path, fd, lock)


def _numbers(text: bytes) -> list[float]:
    """Those that are some; what else is there is no record of ours."""
    found = []
    for word in text.split():
        with contextlib.suppress(ValueError):
            found.append(float(word))
    return found

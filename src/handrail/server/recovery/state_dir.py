"""The state directory, where a server and its keeper find each other again.

One directory, one lock, one keeper.  A directory that was named is taken or refused; from a
server that is stopped or does not answer it is taken by force.  Without a name, one of the user's
own is taken: where a crash has left the keeper of a server with the same address, else the first
free one.  So several servers on one machine do not meet, and a server after a crash finds what it
has left itself, and not what another has.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Collection

from handrail import directory_secret, private_files, private_places
from handrail.errors import UsageError
from handrail.filesystem import stage_names
from handrail.process.keeper_client.start_keeper import (
    KeeperHandle,
    claim_lease,
    find_keeper,
    holder_of,
    start_keeper,
)
from handrail.server import session_temp
from handrail.server.recovery import orphan_sweep
from handrail.server_settings import Listen, parse_listen

log = logging.getLogger(__name__)

_MOST_SERVERS = 4096
#: How long a server that ends may have the lock of another's directory (``unused_state_dirs``).
_LOOK_SECONDS = 3.0
#: The longest socket name, less what we add.
_LONGEST_NAME = 90
#: How long a lock may outlive the process that had it.
_LOCK_SECONDS = 5.0
SOCKET = "keeper.sock"
_STARTS = "starts"
_ADDRESS = "address"
#: What a server says of itself while it runs; see ``running_servers.py``.
SERVING = "serving"
#: So many crashes at the start in so many seconds are too many.
BUDGET = 3
BUDGET_SECONDS = 60.0


class StateDir:
    """A directory locked by this server until it ends."""

    def __init__(self, path: str, fd: int, lock: int) -> None:
        self.path = path
        self.fd = fd
        self._lock = lock
        #: The secret shared with our keeper and Unix-socket clients; made with the first keeper.
        self.secret = b""
        self.claimed: KeeperHandle | None = None
        self._started = False

    @property
    def _socket(self) -> str:
        # By descriptor: a socket's name is limited to 107 bytes, a directory's is not.
        return private_files.socket_address(self.fd, SOCKET)

    def keeper(self, orphan_ttl: float) -> KeeperHandle:
        """The keeper of this directory: the one that is alive, or a new one."""
        claimed, self.claimed = self.claimed, None
        found = claimed or self.find()
        self._started = self._started or found is not None
        self._make_secret()
        return found._replace(secret=self.secret) if found else self._start(orphan_ttl)

    def keeper_after_loss(self, orphan_ttl: float) -> KeeperHandle:
        """Another keeper after the one that was found died before anything was adopted."""
        self._started = False
        return self.keeper(orphan_ttl)

    def find(self, *, wait: bool = True) -> KeeperHandle | None:
        try:
            secret = directory_secret.read_secret(self.fd)
        except OSError as error:
            raise self._unusable("secret", error) from None
        try:
            return find_keeper(self._socket, secret, wait=wait)
        except KeyboardInterrupt:
            self.ready()  # to be told to stop is no crash
            raise

    def _make_secret(self) -> None:
        try:
            self.secret = directory_secret.make_secret(self.fd)
        except OSError as error:
            log.error(
                "no secret can be kept in %s (%s), so neither this server nor its keeper can prove"
                " that it is ours; make room, or remove the file `secret` there",
                self.path,
                error.strerror,
            )

    def begin(self) -> None:
        """Note a start; raises UsageError when starts failed too often just now.

        A service manager would restart a server that crashes at its start for ever, and each start
        would take over the children in vain.
        """
        now = time.monotonic()
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        try:
            file = private_files.open_file(self.fd, _STARTS, flags)
        except OSError:
            return  # a full disk must not block access to the processes
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
        with contextlib.suppress(OSError):  # there is none, or ``begin`` could not write it either
            os.unlink(_STARTS, dir_fd=self.fd)

    def _unusable(self, name: str, error: OSError) -> UsageError:
        self.ready()  # an orderly refusal is no crash
        return UsageError(
            f"{os.path.join(self.path, name)} cannot be used ({error.strerror}); move it away, or"
            " give another --state-dir"
        )

    def at_work(self, mark: int) -> None:
        """Note that the keeper with this tag serves us; see ``orphan_sweep.py``."""
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
        """End what keepers other than the one with this tag have left; see ``orphan_sweep.py``."""
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
        """Clear up after the keeper ended with all its children; one before it may have died."""
        self.clear()
        with contextlib.suppress(OSError):
            stage_names.sweep(self.fd)
        if self.remove_secret():
            private_places.forget(self.path)
        with contextlib.suppress(OSError):
            os.unlink(SERVING, dir_fd=self.fd)

    def remove_secret(self) -> bool:
        """Whether no sandbox needs to cover this directory any more; the keeper has ended."""
        try:
            for name in (SOCKET, directory_secret.SECRET):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=self.fd)
        except OSError:
            return False
        return True

    def distrust(self) -> None:
        """Remove the records here: a sandboxed command may have written them.

        What they name would be ended and removed.  A keeper proves itself, so it is believed.
        """
        names = (*orphan_sweep.FILES, session_temp.FILE, stage_names.JOURNAL, SERVING, _ADDRESS)
        for name in names:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self.fd)
                log.warning("%s/%s is not used: a command may have written it", self.path, name)

    def clear(self) -> None:
        """End and remove what a server and a keeper that were both killed have left."""
        for name, clear in (("marks", orphan_sweep.end), ("temporary", session_temp.clear_all)):
            try:
                clear(self.fd)
            except OSError as error:
                log.error(
                    "%s cannot be used (%s), so processes or temporary files that a killed server"
                    " and keeper have left stay; move it away once they are gone",
                    os.path.join(self.path, name),
                    error.strerror,
                )

    def _start(self, orphan_ttl: float) -> KeeperHandle:
        first = not self._started  # else we have lost our keeper, and its children are ours
        if first:
            self.clear()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            try:
                self._bind(listener)
            except OSError as error:
                if first:
                    raise self._unusable(SOCKET, error) from None
                raise
            self._started = True
            keeper_log = self._open_log()
            try:
                return start_keeper(
                    listener=listener, orphan_ttl=orphan_ttl, log=keeper_log, secret=self.secret
                )
            finally:
                if keeper_log is not None:
                    os.close(keeper_log)

    def _bind(self, listener: socket.socket) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(SOCKET, dir_fd=self.fd)
        before = os.umask(0o177)
        try:
            listener.bind(self._socket)
        finally:
            os.umask(before)
        listener.listen()  # the keeper listens once more

    def _open_log(self) -> int | None:
        """Open the keeper's log file; without it the keeper works as well."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        try:
            return private_files.open_file(self.fd, "keeper.log", flags)
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
        """Unlock the directory."""
        stage_names.end_journal(self.fd)
        os.close(self._lock)
        os.close(self.fd)


def claim(path: str | None, address: str = "") -> StateDir:
    """Take the directory that was named, or one of our own; raises UsageError.

    ``address``: where we shall listen; a server finds its own directory by it.
    """
    if path is not None:
        return take(path) or _take_over(path)
    base = _base()
    others: set[str] = set()
    taken = _left_by_a_crash(base, address, others) or _first_free(base, others)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with (
        contextlib.suppress(OSError),
        open(private_files.open_file(taken.fd, _ADDRESS, flags), "w") as file,
    ):
        file.write(address)
    return taken


def _left_by_a_crash(base: str, address: str, others: set[str]) -> StateDir | None:
    """Find a directory in which a keeper waits for its next server, which is to listen where we do.

    Those in which a keeper waits for another server are added to ``others``.
    """
    places = []
    with contextlib.suppress(OSError):
        for name in filter(str.isdigit, os.listdir(base)):
            place = os.path.join(base, name)
            if os.path.lexists(os.path.join(place, SOCKET)):
                foreign = address not in (_address_of(place), _listened_at(place))
                places.append((foreign, int(name), place))
    for foreign, _, place in sorted(places):
        taken = None
        try:
            taken = take(place)
            if taken is None:
                continue  # its server is there
            taken.claimed = taken.find(wait=not foreign)
        except BaseException as error:
            if taken is not None:
                taken.close()
            if not isinstance(error, UsageError):
                raise
            log.error("%s", error)
            continue  # its keeper says nothing, or what lies there is odd: it is not needed here
        if taken.claimed is not None and not foreign:
            return taken
        if taken.claimed is not None:
            taken.claimed.sock.close()
            taken.close()
            others.add(place)
            log.warning(
                "the processes of a crashed server wait in %s for the next one at its address (%s);"
                " `--state-dir %s` takes them over",
                place,
                _last_url(place) or _address_of(place) or "not known",
                place,
            )
            continue
        taken.clear()  # its keeper is dead as well, and no server might ever take this one
        taken.close()
    return None


def _address_of(place: str) -> str | None:
    return _text(place, _ADDRESS)


def _listened_at(place: str) -> str | None:
    """Where the server of a directory has listened in fact, in the form of ``claim``."""
    listen = last_listen(place)
    return None if listen is None else listen.key


def last_listen(place: str) -> Listen | None:
    """Where the server of a directory has listened that did not stop by itself, if it did."""
    url = _last_url(place)
    try:
        return None if url is None else parse_listen(url.replace("wss://", "ws://", 1))
    except UsageError:
        return None


def _last_url(place: str) -> str | None:
    text = _text(place, SERVING)
    try:
        return None if text is None else str(json.loads(text)["address"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _text(place: str, name: str) -> str | None:
    try:
        return read_text(place, name)
    except (OSError, ValueError):
        return None


def read_text(place: str, name: str) -> str:
    """The text of a file of ours in a state directory; raises OSError and ValueError."""
    directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with open(private_files.open_file(directory, name, os.O_RDONLY)) as file:
            return file.read()
    finally:
        os.close(directory)


def _first_free(base: str, but: Collection[str]) -> StateDir:
    unusable = None
    for number in range(_MOST_SERVERS):
        if (place := os.path.join(base, str(number))) in but:
            continue
        try:
            taken = take(place)
        except UsageError as error:
            unusable = unusable or error  # of that one; the next may be as it should
            continue
        if taken is not None:
            return taken
    full = f"{_MOST_SERVERS} servers are running under {base}; stop some of them"
    raise unusable or UsageError(full)


def inherit(path: str, lock: int) -> StateDir:
    """The directory of a server that hands over to us, with the lock it holds."""
    private_places.remember(path)
    return StateDir(path, private_files.open_directory(path), lock)


def in_use(path: str) -> bool:
    """Whether a server has this directory."""
    lock = os.path.join(path, "lock")
    return private_files.is_locked(os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC))


def holder(path: str) -> int:
    """The pid of the server that holds the lease of this directory's keeper, or 0."""
    # Asked repeatedly while a keeper of an earlier version is replaced and given its secret.
    handle = _keeper_in(path, report=False)
    if handle is None:
        return 0
    with handle.sock:
        return holder_of(handle)


def _keeper_in(path: str, *, report: bool = True) -> KeeperHandle | None:
    """The keeper of a directory that another process may have locked."""
    return find_keeper(f"{path}/{SOCKET}", directory_secret.secret_in(path), report=report)


def _take_over(path: str) -> StateDir:
    """Take a directory from a server that is stuck; raises UsageError when it is not."""
    deadline = time.monotonic() + _LOOK_SECONDS
    handle = _keeper_in(path) if len(path) < _LONGEST_NAME else None
    while handle is None and time.monotonic() < deadline:
        time.sleep(0.01)
        taken = take(path)
        if taken is not None:
            return taken
    reason = "" if handle is None else claim_lease(handle)
    if handle is not None and reason is None:
        deadline = time.monotonic() + _LOCK_SECONDS
        while time.monotonic() < deadline:
            taken = take(path)
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


def take(path: str, *, to_retire: bool = False) -> StateDir | None:
    """Lock a directory; None if another program has it.  Raises UsageError."""
    try:
        fd = private_files.open_directory(path)
    except private_files.NotOurs as error:
        raise UsageError(
            f"cannot use the state directory {path}: {error.reason}; give another --state-dir"
        ) from None
    try:
        lock = private_files.open_file(fd, "lock", os.O_RDWR | os.O_CREAT)
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
    taken = StateDir(path, fd, lock)
    # With the lock, for without it another server may retire the directory.
    if not to_retire and not private_places.remember(path):
        taken.distrust()
    return taken


def _numbers(text: bytes) -> list[float]:
    """The integers in a file; anything else in it is no record of ours."""
    found = []
    for word in text.split():
        with contextlib.suppress(ValueError):
            found.append(float(word))
    return found

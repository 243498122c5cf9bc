"""The network that several sandboxed commands share: one loopback for all of them.

A namespace lives as long as a descriptor or a process is in it.  Here it is held by a descriptor
while its workspace or session lives, and by the commands themselves: a server that takes over finds
it through them.  Nothing of it is on disk.

Commands share a network only if they may do the same: under one name, with the same rules for files
and the same network.  For over a Unix socket with an abstract name, which belongs to the network,
one command can pass open files to another.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import sys
import weakref

from handrail import memory_file
from handrail.errors import SandboxUnavailable
from handrail.keeper.seccomp import spawn as seccomp_spawn
from handrail.sandbox.light_dataclass import Frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from handrail.filesystem.pool import FilePool
    from handrail.sandbox.profile import Profile

#: With so many networks of one owner, those without a process are closed.
MOST = 64
_MAKE_SECONDS = 30.0
_GET_USER_NAMESPACE = 0xB701
#: CAP_SYS_ADMIN, without which a namespace is made in a user namespace.
_ADMIN = 21
#: Addresses of the ways out of commands that share a network, counted upwards from here.
_FIRST = 127 << 24 | 128 << 16
_ADDRESSES = 1 << 23
_ENV = {b"PATH": b"/usr/bin:/bin"}


class Joining(Frozen):
    """What a command needs to be started in a shared network."""

    #: The namespace; it may be closed before the command is started, or started once more.
    network: LoopbackNetwork
    #: Whether a user namespace owns it, which has to be joined before.
    user: bool
    #: Under which name it is shared, and by commands that may do what.
    name: str = ""
    key: str = ""
    #: Where its way out and its resolver listen; empty: it has none.
    address: str = ""


class LoopbackNetwork:
    """One network namespace with nothing but loopback."""

    def __init__(self, fd: int) -> None:
        """Takes the descriptor of a namespace; raises OSError if it cannot be joined, or is the
        one that this program is in."""
        if os.path.samestat(os.fstat(fd), os.stat("/proc/self/ns/net")):
            raise OSError(errno.EINVAL, "it is no network of commands")
        self.fd = fd
        owner = fcntl.ioctl(fd, _GET_USER_NAMESPACE)
        try:
            self._user = os.fstat(owner).st_ino != os.stat("/proc/self/ns/user").st_ino
        finally:
            os.close(owner)
        self._used = 0
        #: Those of commands, which may not have been started yet.
        self._joinings: list[weakref.ref[Joining]] = []

    @classmethod
    def make(cls) -> LoopbackNetwork:
        """Make one; takes a millisecond.  Raises SandboxUnavailable."""
        try:
            fd = _make()
            try:
                return cls(fd)
            except BaseException:
                os.close(fd)
                raise
        except OSError as error:
            raise SandboxUnavailable(
                f"the network that commands share cannot be made: {error.strerror}; run `handrail"
                " doctor` to see what is missing"
            ) from None

    def join(self, name: str, key: str, *, managed: bool) -> Joining:
        """Prepare one command to join; ``managed``: with an address for its way out."""
        address = ""
        if managed:
            self._used = self._used % (_ADDRESSES - 1) + 1
            address = _text(_FIRST + self._used)
        joining = Joining(self, self._user, name, key, address)
        self._joinings = [one for one in self._joinings if one() is not None]
        self._joinings.append(weakref.ref(joining))
        return joining

    def is_awaited(self) -> bool:
        """Whether a command may be on its way into it."""
        return any(one() is not None for one in self._joinings)

    @property
    def inode(self) -> int:
        return os.fstat(self.fd).st_ino

    def copied(self) -> int:
        """A descriptor of the network for a command; raises SandboxUnavailable after ``close``."""
        if self.fd < 0:
            raise SandboxUnavailable(
                "the network that commands share was closed before this command was started;"
                " start it again"
            )
        return os.dup(self.fd)

    def note(self, address: str) -> None:
        """A command that was started by another server has this address."""
        number = int.from_bytes(bytes(map(int, address.split("."))), "big") - _FIRST
        self._used = max(self._used, number)

    def close(self) -> None:
        """Close our descriptor; the network ends with the last command in it."""
        fd, self.fd = self.fd, -1
        os.close(fd)


class LoopbackNetworks:
    """The shared networks of one session or executor, made when first needed."""

    def __init__(self) -> None:
        #: By name, and then by what their commands may do.
        self._made: dict[tuple[str, str], LoopbackNetwork] = {}
        self._closed = False

    def joiner(
        self, name: str, hosts: str = "", led_to: Callable[[str], None] | None = None
    ) -> Callable[[Profile], Joining | None]:
        """The callback of `Sandbox.sandboxed` for a command that shares its network under a name.

        ``hosts``: the configuration of a managed network.  ``led_to`` is told the address of its
        way out.
        """

        def join(profile: Profile) -> Joining | None:
            if not is_shareable(profile):
                return None
            key = key_of(profile, hosts)
            joining = self._find(name, key).join(name, key, managed=profile.managed)
            if led_to is not None:
                led_to(joining.address)
            return joining

        return join

    def _find(self, name: str, key: str) -> LoopbackNetwork:
        found = self._made.get((name, key))
        if found is None:
            if self._closed:
                raise SandboxUnavailable("the commands of this session have been ended")
            self._make_room()
            found = self._made[name, key] = LoopbackNetwork.make()
        return found

    def preparation(self, name: str, profile: Profile, hosts: str = "") -> Preparation | None:
        """The work for another thread before a command joins, if its network is not made yet."""
        if not is_shareable(profile) or (name, key_of(profile, hosts)) in self._made:
            return None
        return Preparation(self, name, key_of(profile, hosts))

    def take(self, name: str, key: str, network: LoopbackNetwork) -> None:
        """Hold one that was made, unless that has been done meanwhile."""
        if self._closed or (name, key) in self._made:
            network.close()
        else:
            self._make_room()
            self._made[name, key] = network

    def _make_room(self) -> None:
        """Close networks without a process, the oldest first.

        Those in use are not counted: there are no more of them than processes, which are limited.
        """
        surplus = len(self._made) + 1 - MOST
        if surplus <= 0:
            return
        used = _networks_in_use()
        free = [
            key for key, one in self._made.items() if one.inode not in used and not one.is_awaited()
        ]
        for key in free[:surplus]:
            self._made.pop(key).close()

    def named(self, name: str) -> Iterator[LoopbackNetwork]:
        """All networks under a name, the oldest first."""
        return iter([one for (known, _), one in self._made.items() if known == name])

    def revive(self, name: str, key: str, pid: int, address: str) -> None:
        """Hold the network of a process again that a server before us has started.

        One that cannot be joined is left to its process, and so is a process that is still in the
        network of the machine, on its way to its own.
        """
        found = self._made.get((name, key))
        if found is None:
            try:
                fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return  # it has just ended
            try:
                found = self._made[name, key] = LoopbackNetwork(fd)
            except OSError:
                os.close(fd)
                return
        if address:
            found.note(address)

    def drop(self, name: str) -> None:
        """Close the networks under a name."""
        for key in [key for key in self._made if key[0] == name]:
            self._made.pop(key).close()

    def close(self) -> None:
        """Close all networks."""
        self._closed = True
        while self._made:
            self._made.popitem()[1].close()


class Preparation:
    """One network, made in another thread: a program has to be started and waited for."""

    def __init__(self, networks: LoopbackNetworks, name: str, key: str) -> None:
        self._networks = networks
        self._name = name
        self._key = key

    async def in_thread(self, pool: FilePool) -> None:
        """Make and hold the network; raises SandboxUnavailable and FilesError (no free thread)."""
        made = await pool.run(
            LoopbackNetwork.make, deadline=_MAKE_SECONDS, discard=LoopbackNetwork.close
        )
        self.done(made)

    def done(self, network: LoopbackNetwork) -> None:
        """Hold the network; the command that this was for finds it."""
        self._networks.take(self._name, self._key, network)


def _networks_in_use() -> set[int]:
    """The network namespaces of all processes that can be seen, by inode."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                found.add(os.stat(f"/proc/{name}/ns/net").st_ino)
            except OSError:
                pass  # it has ended, or is another user's
    return found


def key_of(profile: Profile, hosts: str) -> str:
    """A digest of what a command may do: files, and the network, ``hosts`` of a managed one."""
    facts = (
        profile.rules,
        profile.globs,
        profile.glob_depth,
        profile.protected,
        profile.private_tmp,
        profile.managed,
        hosts,
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def is_shareable(profile: Profile) -> bool:
    """Whether a command has a network of its own that could be shared: no host's, and a sandbox."""
    return profile.sandboxed and (profile.managed or not profile.network)


def _text(address: int) -> str:
    return ".".join(map(str, address.to_bytes(4, "big")))


def _make() -> int:
    """Make a namespace by a program that waits until it has been opened; raises OSError."""
    told, tell = os.pipe2(os.O_CLOEXEC)
    wait, end = os.pipe2(os.O_CLOEXEC)
    program = -1
    try:
        words, program = _maker()
        actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
            (os.POSIX_SPAWN_DUP2, wait, 0),
            (os.POSIX_SPAWN_DUP2, tell, 1),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ]
        pid = os.posix_spawn(words[0], words, _ENV, file_actions=actions, setsigmask=())
        os.close(tell)
        tell = -1
        made = -1
        try:
            if os.read(told, 1):
                made = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(end)
            end = -1
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if made < 0:
            number = code if code > 0 else errno.EPERM
            raise OSError(number, os.strerror(number))
        return made
    finally:
        for fd in (told, tell, wait, end, program):
            if fd >= 0:
                os.close(fd)


def _maker() -> tuple[list[bytes], int]:
    """The words of the program that makes a namespace, and a descriptor to close behind it."""
    user = not _is_admin()
    if not seccomp_spawn.startable():
        return [*program_words(), b"make", b"%d" % user], -1
    from handrail.sandbox.bwrap import network_stub

    program = network_stub.maker(os.geteuid(), os.getegid(), user=user)
    fd = memory_file.of("handrail-network", program)
    # For reading: a file that is open for writing is no program.
    return [b"/proc/self/fd/%d" % fd], fd


def program_words() -> list[bytes]:
    """The program that does what the stubs do, where they cannot run."""
    program = os.path.join(os.path.dirname(__file__), "bwrap", "network_program.py")
    return [os.fsencode(word) for word in (sys.executable, "-I", "-S", "-B", program)]


def _is_admin() -> bool:
    with open("/proc/self/status", "rb") as file:
        for line in file:
            if line.startswith(b"CapEff:"):
                return bool(int(line.split()[1], 16) >> _ADMIN & 1)
    return False

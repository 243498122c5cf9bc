"""Records of detached workspaces: what is needed to attach again.

One file per workspace in the user's state directory, readable by the user alone, because it has
the secret of its session and the variables of its commands.  It is locked while a program is
attached; tokens and the secrets of a workspace are never stored.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

from handrail import private_files, private_places
from handrail.errors import HandrailError, UsageError
from handrail.network import settings
from handrail.network.settings import Network
from handrail.workspace.profile import Profile
from handrail.workspace.variables import InheritEnv

_ID = re.compile(r"[0-9a-f]{8}")


class WorkspaceBusy(HandrailError):
    """Another program is attached to that workspace; try again when it has left."""


@dataclass(frozen=True, slots=True)
class LeftProcess:
    """One process of a detached workspace, as of the detach."""

    argv: list[str]
    #: The session in which it was started, under which its result is stored.
    session: str = ""
    name: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    #: In seconds since the epoch; 0: not known.
    started_at: float = 0.0
    #: It outlives the workspace.
    outlives: bool = False
    #: Its end was shown to the user.
    seen: bool = False


@dataclass(frozen=True, slots=True)
class DetachedRecord:
    """The stored record of a detached workspace."""

    id: str
    at: str
    root: str
    session: str
    secret: str | None = field(repr=False)
    profile: Profile | None
    temporary: str | None = None
    #: The caller's changes to the variables of its machine; None removes one.
    env: dict[str, str | bytes | None] = field(default_factory=dict, repr=False)
    inherit_env: InheritEnv = "all"
    limits: dict[str, int] | None = None
    #: The names of its secrets.
    secrets: list[str] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    #: Its processes by id.
    processes: dict[str, LeftProcess] = field(default_factory=dict)
    #: How many processes it has started in all.
    count: int = 0
    #: Until when its processes may go on, in seconds since the epoch; None: until they end.
    until: float | None = None

    @property
    def resume(self) -> tuple[str, str | None]:
        """The session and the secret to resume it."""
        return self.session, self.secret


class Claim:
    """A record that this program has locked."""

    def __init__(self, fd: int, path: str, record: DetachedRecord) -> None:
        self._fd = fd
        self._path = path
        self.record = record

    def save(self, record: DetachedRecord) -> None:
        """Write it again: its secret changes with every connection."""
        _write(self._path, record)

    def remove(self) -> None:
        """Delete the record."""
        for path in (self._path, f"{self._path}.lock"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def release(self) -> None:
        """Unlock it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def leave(record: DetachedRecord, claimed: Claim | None) -> None:
    """Write the record of a workspace that is being detached from, and unlock it."""
    if claimed is None:
        _write(os.path.join(_directory(), record.id), record)
        return
    claimed.save(record)
    claimed.release()


def check_room(workspace_id: str) -> None:
    """Raise the OSError of ``leave`` before the workspace is left: nothing else leads to it."""
    path = os.path.join(_directory(), f"{workspace_id}.room")
    _write(path, DetachedRecord(workspace_id, "", "", "", None, None))
    os.unlink(path)


def claim(workspace_id: str) -> Claim:
    """Lock a record; raises UsageError when there is none, WorkspaceBusy when it is locked."""
    if not isinstance(workspace_id, str) or not _ID.fullmatch(workspace_id):
        raise UsageError(f"{workspace_id!r} is no id of a workspace; `handrail ps` lists them")
    path = os.path.join(_directory(), workspace_id)
    lock = _open(f"{path}.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return Claim(lock, path, _read(path))
    except BlockingIOError:
        os.close(lock)
        raise WorkspaceBusy(
            f"another program is attached to workspace {workspace_id}; try again when it has left"
        ) from None
    except FileNotFoundError:
        os.unlink(f"{path}.lock")
        os.close(lock)
        raise UsageError(
            f"there is no workspace {workspace_id} that was detached from; `handrail ps` lists"
            " those there are"
        ) from None
    except BaseException:
        os.close(lock)
        raise


def changed_at(record: DetachedRecord) -> float:
    """When it was last written, in seconds since the epoch."""
    return _age(os.path.join(_directory(), record.id))


def known() -> Iterator[DetachedRecord]:
    """All records, oldest first."""
    directory = _directory()
    names = [name for name in os.listdir(directory) if _ID.fullmatch(name)]
    paths = [os.path.join(directory, name) for name in names]
    for path in sorted(paths, key=_age):
        with contextlib.suppress(FileNotFoundError, UsageError):
            yield _read(path)


def _age(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return 0.0


def _directory() -> str:
    path = os.path.join(private_places.state_home(), "workspaces")
    os.close(private_files.open_directory(path))
    return path


def _open(path: str, flags: int) -> int:
    directory = private_files.open_directory(os.path.dirname(path))
    try:
        return private_files.open_file(directory, os.path.basename(path), flags)
    finally:
        os.close(directory)


def _read(path: str) -> DetachedRecord:
    with open(_open(path, os.O_RDONLY), encoding="utf-8") as file:
        try:
            found = json.load(file)
            profile = found.pop("profile")
            if profile is not None:
                profile = Profile(
                    read=tuple(profile["read"]),
                    write=tuple(profile["write"]),
                    deny=tuple(profile["deny"]),
                    network=_network(profile["network"]),
                    temporary=profile["temporary"] is True,
                )
            outliving = found.pop("outliving", ())  # of an earlier version, like a mere list below
            found["processes"] = {
                name: LeftProcess(**left)
                if isinstance(left, dict)
                else LeftProcess(left, found["session"], outlives=name in outliving)
                for name, left in found["processes"].items()
            }
            return DetachedRecord(profile=profile, **found)
        except (ValueError, TypeError, KeyError) as error:
            raise UsageError(f"{path} does not read: {error}; remove it") from None


def _network(kept: object) -> bool | Network:
    """The network of a profile as `_write` has it; raises UsageError and TypeError."""
    if isinstance(kept, dict):
        return settings.from_json(kept)
    return kept if isinstance(kept, bool) else settings.checked(kept)


def _write(path: str, record: DetachedRecord) -> None:
    """Write it whole or not at all: the previous secret is no longer valid."""
    directory = private_files.open_directory(os.path.dirname(path))
    try:
        data = json.dumps(asdict(record)).encode()
        private_files.replace_file(directory, os.path.basename(path), data)
    except OSError as error:
        text = f"the workspace's record cannot be written ({os.strerror(error.errno or 0)})"
        raise OSError(error.errno, f"{text}; make room, and try again", path) from None
    finally:
        os.close(directory)

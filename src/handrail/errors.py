"""Every exception handrail raises on purpose.

HandrailError
├── UsageError                 the caller asked for something that makes no sense
├── ProtocolError
│   ├── LocalProtocolError     we misused the protocol
│   ├── RemoteProtocolError    the peer did; the connection may have to end
│   └── RpcError               the peer answered a call with an error (code, message, data)
├── TransportError
│   └── ConnectionLost         the connection is gone (``resumable``: whether a retry helps)
├── ProcessError
│   ├── SpawnFailed            the child could not be started (errno, path)
│   ├── ProcessUnknown
│   ├── ProcessExists
│   ├── StdinClosed
│   └── KeeperLost             the keeper went away while it was needed
├── ExecutorError              the five families of an executor, near and far
│   ├── ExecutorSpawnFailed    "failed to spawn process: ..."
│   ├── WriteFailed            "failed to write to process: ..."
│   ├── ResizeFailed           "failed to resize process pty: ..."
│   ├── TerminateFailed        "failed to terminate process: ..."
│   └── ExecutorTransportFailed    "executor transport failure: ..."
│       └── AuthenticationFailed   the server does not accept the token, or wants one
├── FilesError                 a file operation failed (kind, path); an OSError too
├── SandboxError
│   └── SandboxUnavailable     nothing here can enforce the profile: not run
├── PolicyError
│   ├── Forbidden
│   └── ApprovalRejected
└── PatchError                 a patch does not parse or does not apply (with path and line)

Narrower ones live beside the only code that raises them: HandshakeError in transport, BadUri
and NotNative in protocol, StartCancelled in process, RulesFileError and RuleError in policy,
PatchSyntaxError, ChunkNotFoundError and PartlyAppliedError in patch.

The families say which side can act on them.  Each carries fields, not only a sentence; the
sentence says what, why and what to do.  Only the handlers in ``server/`` and ``executor/`` map
them to wire codes and back.
"""

from __future__ import annotations

import errno

# They belong to this module, for which no other is asked.
from handrail.start_errors import HandrailError as HandrailError  # noqa: PLC0414
from handrail.start_errors import ProcessError as ProcessError  # noqa: PLC0414
from handrail.start_errors import SandboxError as SandboxError  # noqa: PLC0414
from handrail.start_errors import SandboxUnavailable as SandboxUnavailable  # noqa: PLC0414
from handrail.start_errors import SpawnFailed as SpawnFailed  # noqa: PLC0414
from handrail.start_errors import UsageError as UsageError  # noqa: PLC0414

TYPE_CHECKING = False
if TYPE_CHECKING:  # without the import, which start-up would pay for
    from collections.abc import Callable
    from typing import Any, Self


class ProtocolError(HandrailError):
    """One side broke the wire protocol."""


class LocalProtocolError(ProtocolError):
    """This side misused the protocol."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol."""


class RpcError(ProtocolError):
    """A call was answered with an error."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class TransportError(HandrailError):
    """Bytes could not be moved."""


class ConnectionLost(TransportError):
    """The connection is gone; ``resumable`` says whether a new one can go on from here."""

    def __init__(self, message: str, *, resumable: bool = True) -> None:
        super().__init__(message)
        self.resumable = resumable


class ProcessUnknown(ProcessError):
    """No process of that id here."""


class ProcessExists(ProcessError):
    """The id is taken."""


class StdinClosed(ProcessError):
    """The process takes no input (any more)."""


class KeeperLost(ProcessError):
    """The keeper went away while it was needed."""


class ExecutorError(HandrailError):
    """An executor could not do its part."""

    prefix = ""

    def __init__(self, detail: str) -> None:
        super().__init__(self.prefix + detail)
        self._detail = detail

    @property
    def detail(self) -> str:
        """The sentence without the prefix of its family."""
        return self._detail


class ExecutorSpawnFailed(ExecutorError):
    """Nothing was started, or with ``unsure`` it may have been: the connection was lost.

    ``errno`` is the kernel's reason; 0: there is none, or it is not known.
    """

    prefix = "failed to spawn process: "

    def __init__(self, detail: str, *, errno: int = 0, unsure: bool = False) -> None:
        super().__init__(detail)
        self.errno = errno
        self.unsure = unsure


class WriteFailed(ExecutorError):
    """Input was not accepted."""

    prefix = "failed to write to process: "


class ResizeFailed(ExecutorError):
    """The terminal keeps its size, or there is none."""

    prefix = "failed to resize process pty: "


class TerminateFailed(ExecutorError):
    """The process could not be told to end."""

    prefix = "failed to terminate process: "


class ExecutorTransportFailed(ExecutorError):
    """The connection to the process is gone, and with it what is known of the process."""

    prefix = "executor transport failure: "

    def again(self, before: str = "") -> ExecutorTransportFailed:
        """Another error for the same failure; ``before`` says what failed.  Raises nothing."""
        return type(self)(before + self.detail)


class AuthenticationFailed(ExecutorTransportFailed):
    """The server does not accept the token, or wants one."""


class FilesError(HandrailError, OSError):
    """A file operation failed; also the OSError that Python would raise, with its errno.

    ``kind`` is one of: not_found, invalid_input, permission_denied, exists, not_a_directory,
    is_a_directory, read_only, busy, too_large, link, sandboxUnavailable, other.  ``link``: no link
    is followed here.  ``sandboxUnavailable``: a SandboxUnavailable too, nothing was done.
    Where Python has a class of its own for the errno, the exception is one of that class too: a
    missing file is a FileNotFoundError.  ``filename`` is ``path``, as Python calls it.
    """

    def __new__(cls, message: str, *, kind: str = "other", **more: Any) -> Self:
        family = _FAMILIES.get(kind) if cls is FilesError else None
        return super().__new__(family or cls, message)  # type: ignore[return-value]

    def __init__(self, message: str, *, kind: str = "other", path: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.path = path
        # How the wire names an errno, at the end of a sentence or before its remedy.
        said = message.rpartition("(os error ")[2].partition(")")[0]
        self.errno = int(said) if said.isdecimal() else _ERRNOS.get(kind, errno.EIO)
        self.strerror = message
        self.filename = path or None

    def __str__(self) -> str:
        return self.strerror or ""

    def replace(self, shown: Callable[[str], str]) -> None:
        """Put ``shown`` of them in place of sentence and path; the causes go, if it differs."""
        message, path = shown(str(self)), shown(self.path)
        if (message, path) != (str(self), self.path):
            self.args, self.strerror, self.path, self.filename = (message,), message, path, path
            self.__cause__ = self.__context__ = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _files_error, (str(self), self.kind, self.path)


def _files_error(message: str, kind: str, path: str) -> FilesError:
    return FilesError(message, kind=kind, path=path)


class _Missing(FilesError, FileNotFoundError): ...


class _Refused(FilesError, PermissionError): ...


class _Exists(FilesError, FileExistsError): ...


class _NoDirectory(FilesError, NotADirectoryError): ...


class _Directory(FilesError, IsADirectoryError): ...


class _Unenforceable(FilesError, SandboxUnavailable): ...


_FAMILIES: dict[str, type[FilesError]] = {
    "not_found": _Missing,
    "permission_denied": _Refused,
    "exists": _Exists,
    "not_a_directory": _NoDirectory,
    "is_a_directory": _Directory,
    "sandboxUnavailable": _Unenforceable,
}
_ERRNOS = {
    "not_found": errno.ENOENT,
    "invalid_input": errno.EINVAL,
    "permission_denied": errno.EACCES,
    "exists": errno.EEXIST,
    "not_a_directory": errno.ENOTDIR,
    "is_a_directory": errno.EISDIR,
    "read_only": errno.EROFS,
    "busy": errno.EBUSY,
    "too_large": errno.EFBIG,
    "link": errno.ELOOP,
}
for _family in _FAMILIES.values():
    _family.__name__ = _family.__qualname__ = FilesError.__name__


class SpawnUnenforceable(ExecutorSpawnFailed, SandboxUnavailable):
    """An executor started nothing, because nothing on this machine can enforce the profile."""


class PolicyError(HandrailError):
    """The command may not run as requested."""


class Forbidden(PolicyError):
    """A rule forbids it; no approval can change that."""


class ApprovalRejected(PolicyError):
    """The approver was asked and refused."""


class PatchError(HandrailError):
    """A patch does not parse or does not apply."""

    def __init__(self, message: str, *, path: str = "", line: int = 0) -> None:
        super().__init__(message)
        self.path = path
        self.line = line

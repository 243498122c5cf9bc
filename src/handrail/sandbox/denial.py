"""Was it the sandbox?  Pure: texts, codes and attempts in, an opinion or a record out.

What a user is told of it is in ``explain_refusal.py``.

``likely_denied`` is the rule every path of this package shares: a guess from exit code and
output, wrong in both directions now and then.  A ``Denial`` is one piece of evidence beside it;
``source`` says where it comes from and ``certain`` whether a guess is in it.  No record alone may
ever widen permissions.  ``judge`` reads the end of a sandboxed command: what is known for certain
stands beside the guess and does not change it, for clients of the wire decide by the guess; it
does for a client that has asked to be told for certain (``judge_watched``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from handrail.process.spec import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from handrail.network.managed.denials import NetworkDenial
    from handrail.process.spec import NetworkHandle, ProcessSpec

#: What the wire calls the sandbox of this machine, whichever mechanism it is.
LINUX_SECCOMP = "linuxSeccomp"

#: What refusals look like, in lower case.
PHRASES = (
    "operation not permitted",
    "permission denied",
    "read-only file system",
    "seccomp",
    "sandbox",
    "landlock",
    "failed to write file",
)
#: 128 + SIGSYS: a system call was answered with death.
SIGSYS_EXIT = 128 + 31
#: Usage errors, programs that cannot be run, programs that are not there.
_ORDINARY_CODES = frozenset((2, 126, 127))
_NO_SANDBOX = frozenset(("none", ""))
_LINUX = frozenset(("linuxseccomp", "linuxlandlock", "linuxbubblewrap"))

#: The phrases that the kernel's own messages hold: only beside these a path is looked for.
_SYSTEM_PHRASES = re.compile(
    r"operation not permitted|permission denied|read-only file system", re.IGNORECASE
)
_QUOTED = re.compile(r"'([^'\n]+)'|\"([^\"\n]+)\"|`([^`'\n]+)[`']|‘([^’\n]+)’")
#: How much text, and how many records of it, are worth a look.
_LONGEST_TEXT = 1 << 20
_MOST_RECORDS = 32


@dataclass(frozen=True, slots=True)
class Host:
    """The host of a network denial; ``count``: how often it was refused."""

    name: str
    port: int | None
    protocol: str | None = None
    method: str | None = None
    reason: str | None = None
    pid: int | None = None
    comm: str | None = None
    count: int = 1


@dataclass(frozen=True, slots=True)
class Denial:
    """One thing that was refused, or seems to have been."""

    kind: str  # file, network or process
    op: str | None  # the system call or what a proxy was asked; None: not known
    path: str | None  # a path, or host:port
    source: str  # text, notify, proxy or resolver
    certain: bool
    #: Of a network denial: where it was to go, and which process asked.
    host: Host | None = None
    #: Instead of all else: how many further denials of this kind are not listed.
    omitted: int = 0

    @property
    def reason(self) -> str | None:
        """Why a managed network refused the host."""
        return None if self.host is None else self.host.reason

    def members(self) -> dict[str, object]:
        """As it is told to callers and clients: one level, and of a host what is known of it."""
        found: dict[str, object] = {
            "kind": self.kind,
            "op": self.op,
            "path": self.path,
            "source": self.source,
            "certain": self.certain,
        }
        if self.host is not None:
            named = {"host": self.host.name, **asdict(self.host)}
            del named["name"]
            found |= {name: value for name, value in named.items() if value is not None}
        if self.omitted:
            found["omitted"] = self.omitted
        return found


def again(known: Denial) -> Denial:
    """The record of something that was refused once more."""
    host = known.host
    return known if host is None else replace(known, host=replace(host, count=host.count + 1))


def likely_denied(sandbox: str, exit_code: int | None, *texts: bytes | str) -> bool:
    """Whether a command that ended with ``exit_code`` seems to have met its sandbox.

    ``sandbox`` is the name of its sandbox (``none`` for no sandbox), in the spelling of the wire or
    with underscores.  ``texts``: stdout, stderr and both as they came, whichever there are.
    """
    name = sandbox.replace("_", "").lower()
    if name in _NO_SANDBOX or exit_code is None or exit_code == 0:
        return False
    if any(_says_so(text) for text in texts):
        return True
    if exit_code in _ORDINARY_CODES:
        return False
    return name in _LINUX and exit_code == SIGSYS_EXIT


def _says_so(text: bytes | str) -> bool:
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    lowered = text.lower()
    return any(phrase in lowered for phrase in PHRASES)


def from_text(*texts: bytes | str) -> list[Denial]:
    """Paths that the output blames, as far as they can be fished out of it."""
    found: dict[str, Denial] = {}
    for text in texts:
        if isinstance(text, bytes):
            text = text[-_LONGEST_TEXT:].decode("utf-8", "replace")
        for line in text.splitlines():
            match = _SYSTEM_PHRASES.search(line)
            if match is None:
                continue
            path = _path_before(line[: match.start()]) or _path_after(line[match.end() :])
            if path is not None and path not in found:
                found[path] = Denial("file", None, path, "text", certain=False)
                if len(found) >= _MOST_RECORDS:
                    return list(found.values())
    return list(found.values())


def _path_before(text: str) -> str | None:
    """``tool: cannot touch 'X': <phrase>`` and ``tool: X: <phrase>``."""
    text = text.rstrip()
    if not text.endswith(":"):
        return None
    text = text[:-1]
    quoted = _QUOTED.findall(text)
    if quoted:
        return _path_like("".join(quoted[-1]))
    return _path_like(text.rsplit(": ", 1)[-1].rsplit(" ", 1)[-1])


def _path_after(text: str) -> str | None:
    """``<phrase>: 'X'`` and ``<phrase>, open 'X'``."""
    if not text.lstrip().startswith((":", ",", "(")):
        return None
    quoted = _QUOTED.findall(text)
    return _path_like("".join(quoted[-1])) if quoted else None


def _path_like(word: str) -> str | None:
    return word if "/" in word and len(word) < 4096 else None


def merge(*sources: Iterable[Denial]) -> list[Denial]:
    """All records, a certain one in place of a guess about the same path."""
    best: dict[tuple[str, str | None], list[Denial]] = {}
    for source in sources:
        for record in source:
            key = (record.kind, record.path)
            kept = best.setdefault(key, [])
            if record in kept or (kept and not record.certain):
                continue
            if record.certain:
                kept[:] = [other for other in kept if other.certain]
            kept.append(record)
    return [record for records in best.values() for record in records]


def from_network(found: NetworkDenial) -> Denial:
    """The record of a host that a managed network has refused."""
    if found.omitted:
        return Denial("network", None, None, found.source, certain=True, omitted=found.omitted)
    host = Host(
        found.host,
        found.port,
        found.protocol,
        found.method,
        found.reason,
        found.pid,
        found.comm,
        found.count,
    )
    return Denial("network", found.op, found.place, found.source, certain=True, host=host)


def _records(seen: Sequence[Denial | NetworkDenial]) -> list[Denial]:
    return [one if isinstance(one, Denial) else from_network(one) for one in seen]


def records_of(network: NetworkHandle) -> list[Denial]:
    """What a managed network has refused so far."""
    return _records(network.denials)


def judge_unsandboxed(
    code: int | None, texts: list[bytes], seen: Sequence[Denial | NetworkDenial]
) -> Verdict:
    """List what the proxy of a command in no sandbox has refused; there is nothing to guess."""
    return Verdict(False, tuple(_records(seen)))


def with_network(spec: ProcessSpec, network: NetworkHandle) -> ProcessSpec:
    """The spec, sandboxed or not, of a process with this network, whose denials are judged."""
    if spec.network is network and spec.judge is not None:
        return spec
    return replace(spec, network=network, judge=spec.judge or judge_unsandboxed)


def judge(code: int | None, texts: list[bytes], seen: Sequence[Denial | NetworkDenial]) -> Verdict:
    """Decide by the exit code (None: not known), the retained output and the records."""
    said = likely_denied(LINUX_SECCOMP, code, *texts)
    # What a tool says beside a failure it has survived is no evidence of anything.
    blamed = from_text(*texts) if said else []
    return Verdict(said, tuple(merge(_records(seen), blamed)))


def judge_watched(
    code: int | None, texts: list[bytes], seen: Sequence[Denial | NetworkDenial]
) -> Verdict:
    """Decide for a client that has asked to be told for certain."""
    verdict = judge(code, texts, seen)
    return Verdict(verdict.denied or (bool(seen) and bool(code)), verdict.denials)

"""Explains a refusal in one sentence: what was refused, by which rule, and how to allow it.

``explain`` is the one function behind the line of the command line, ``Result.refusal`` and the note
for a model.  It reads what a sandbox was told (``Rules``), the records of the sandbox (``Denial``)
and the end of the output.  A record of the supervisor is certain.  Output is only evidence where it
blames a path that the rules refuse and the user could write: whatever would fail without a sandbox
too is an ordinary failure, and gets no sentence.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from handrail.sandbox import printed_refusals as printed
from handrail.sandbox.profile import (
    SYSTEM_TMP,
    Access,
    BadIntent,
    Entry,
    Files,
    Glob,
    Intent,
    globs_of,
    normal,
    within,
)

#: How much of the end of an output is read, and how many causes a sentence has.
LOOKED_AT = 16_384
_MOST_CAUSES = 3
_TMP = tuple(map(os.fsdecode, SYSTEM_TMP))

#: The reason of a managed network for a host that no list allows (``handrail.network.decide``).
_UNLISTED = "not_allowed"

_LEAD = "to allow it use "


class Evidence(Protocol):
    """A record of something that was refused, of ``denial.py`` or of a workspace's result."""

    @property
    def kind(self) -> str: ...
    @property
    def path(self) -> str | None: ...
    @property
    def certain(self) -> bool: ...
    @property
    def reason(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Words:
    """How a surface grants what was refused; ``{}`` is a path, or host and port.

    ``host`` is for a managed network; it is empty where the sentence about the host is enough.
    """

    write: str
    network: str
    host: str
    off: str
    read: str
    certain: str
    lead: str = _LEAD


COMMAND_LINE = Words(
    write="--writable {}",
    network="--network",
    host="--allow-host {}",
    off="--sandbox off",
    read="a profile that does not deny {}",
    certain="--json --watch-denials",
)
#: Of ``handrail sandbox``, which has no ``--watch-denials``.
SANDBOX_COMMAND = replace(
    COMMAND_LINE, off="--profile off", certain="handrail run --json --watch-denials"
)
PYTHON = Words(
    write="sandbox=Profile(write=('.', '{}'))",
    network="network='open'",
    host="Managed(allow=['{}'])",
    off="sandbox='off'",
    read="a Profile without {} in deny",
    certain="watch_denials=True",
)
_AGAIN = "exec_command again with sandbox_permissions require_escalated and a justification"
#: For a model that may ask for more, and for one that may not.
MODEL = Words(_AGAIN, _AGAIN, "", _AGAIN, _AGAIN, _AGAIN, lead="to do it without the sandbox call ")
_USER = "only the user can allow it"
MODEL_ALONE = Words(_USER, _USER, "", _USER, _USER, _USER, lead="")


@dataclass(frozen=True, slots=True)
class Rules:
    """What a sandbox was told about files and the network; paths are absolute."""

    cwd: str
    write: tuple[str, ...] = ()
    read: tuple[str, ...] = ("/",)
    deny: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    network: bool = False
    #: Whether commands have a /tmp of their own.
    temporary: bool = False
    #: Whether the network is managed: each host is judged, and its records say why it was refused.
    managed: bool = False
    #: What is denied by patterns.
    globs: tuple[Glob, ...] = ()

    @classmethod
    def of(cls, intent: Intent, cwd: bytes, *, managed: bool = False) -> Rules | None:
        """The rules of an intent; None for no sandbox."""
        if intent.is_off:
            return None
        if intent.files is not Files.RESTRICTED:
            return cls(_text(cwd), write=("/",), network=intent.network, managed=managed)
        found: dict[Access, list[str]] = {access: [] for access in Access}
        for entry in intent.entries:
            found[entry.access] += _paths(entry, intent.workspace_roots)
        return cls(
            _text(cwd),
            tuple(found[Access.WRITE]),
            tuple(found[Access.READ]),
            tuple(found[Access.DENY]),
            tuple(map(_text, intent.protected)),
            intent.network,
            intent.private_tmp is not None or intent.wants_tmp,
            managed,
            _globs(intent, cwd),
        )

    @property
    def offline(self) -> bool:
        """Whether no host can be reached."""
        return not (self.network or self.managed)

    def access(self, path: str) -> Access:
        """What the most specific rule says of an absolute path, protected names apart."""
        best, length = Access.DENY, -1
        groups = ((Access.READ, self.read), (Access.WRITE, self.write), (Access.DENY, self.deny))
        for access, roots in groups:
            for root in roots:
                if len(root) >= length and _within(path, root):
                    best, length = access, len(root)
        found = self.glob_at(path) if best is not Access.DENY else None
        return Access.DENY if found is not None and len(found[0]) >= length else best

    def glob_at(self, path: str) -> tuple[str, str] | None:
        """The innermost path at or above one that a denied pattern matches, and that pattern."""
        if not self.globs:
            return None
        from handrail import glob_pattern  # few profiles have patterns

        try:
            matchers = [(one, glob_pattern.translate(one.pattern)) for one in self.globs]
        except ValueError:
            return None  # an executor of another version knows it
        here = path.encode("utf-8", "surrogateescape")
        while here not in (b"/", b""):
            for one, matcher in matchers:
                start = one.base.rstrip(b"/") + b"/"
                if here.startswith(start) and matcher.match(_text(here[len(start) :])):
                    return _text(here), ("/" if one.base == b"/" else "") + one.pattern
            here = posixpath.dirname(here)
        return None

    def protected_at(self, path: str) -> str | None:
        """The protected directory or file at or above a path in a writable one, if any."""
        here = path
        found = None
        while here not in ("/", ""):
            if here in self.write:
                return found
            if posixpath.basename(here) in self.protected:
                found = here
            here = posixpath.dirname(here)
        return found


@dataclass(frozen=True, slots=True)
class _Cause:
    """One thing that was refused."""

    what: str
    rule: str
    allow: str
    certain: bool = False


def explain(
    rules: Rules | None,
    code: int | None,
    output: bytes | str,
    denials: Iterable[Evidence] = (),
    words: Words = PYTHON,
    *,
    could: Callable[[str], bool] | None = None,
) -> str | None:
    """A sentence about a command that failed and has met its sandbox; None for any other.

    ``output`` is its end, stderr last.  ``could`` says whether this user could write a path, or
    reach a socket, without a sandbox; None where that cannot be known, as on another machine.
    """
    if rules is None or not code:
        return None
    text = output.decode("utf-8", "replace") if isinstance(output, bytes) else output
    text = text[-LOOKED_AT:].replace("\r\n", "\n")
    reader = _Reader(rules, words, could)
    reader.records(denials)
    blamed = reader.text(text)
    causes = list(reader.causes.values())[:_MOST_CAUSES]
    if not causes and reader.missing:
        return (
            f"whether the sandbox refused {reader.missing} is not known: it is not there now, and a"
            f" sandboxed command reaches no Unix socket of the machine; {words.lead}{words.off}"
        )
    if not causes:
        return None if blamed else _unknown(text, code, words)
    what = " and ".join(f"{cause.what} ({cause.rule})" for cause in causes)
    how = " ".join(dict.fromkeys(cause.allow for cause in causes))
    certain = all(cause.certain for cause in causes)
    mark = "" if certain else "probably "
    return f"{mark}refused by the sandbox: {what}; {words.lead}{how}"


def user_could(path: str) -> bool:
    """Whether this user could write a path of this machine, or reach a socket there."""
    here = path
    while not os.path.lexists(here) and here != "/":
        here = posixpath.dirname(here)
    if path.endswith((".sock", ".socket")):
        return here == path
    return os.access(here, os.W_OK, effective_ids=True)


def _unknown(text: str, code: int, words: Words) -> str | None:
    """The sentence for a refusal without a cause: its last line, or the signal, says so."""
    last = text.rstrip().rpartition("\n")[2].strip()
    found = printed.LAST.search(last)
    if found is None and code != 128 + 31:  # SIGSYS
        return None
    said = f"it ended with “{found['phrase']}”" if found else "SIGSYS ended it"
    how = f"to find out use {words.certain}" if words.lead == _LEAD else words.lead + words.off
    return f"{said}; whether the sandbox refused something is not known: {how}"


class _Reader:
    """Collects causes, one for each thing to allow."""

    def __init__(self, rules: Rules, words: Words, could: Callable[[str], bool] | None) -> None:
        self._rules = rules
        self._words = words
        self._could = could or (lambda _: True)
        #: Whether the command ran on this machine.
        self._here = could is not None
        self.causes: dict[str, _Cause] = {}
        #: Unix sockets that were refused for certain, without a say on whether that mattered.
        self._sockets: set[str] = set()
        #: A Unix socket that could not be reached and is not there.
        self.missing = ""

    def _add(self, cause: _Cause) -> None:
        known = self.causes.get(cause.allow)
        if known is None or (cause.certain and not known.certain):
            self.causes[cause.allow] = cause

    def records(self, denials: Iterable[Evidence]) -> None:
        """Take what the sandbox has recorded; guesses are made anew from the text."""
        for denial in denials:
            if not denial.certain or not denial.path:
                continue
            if denial.kind != "network":
                self._file(denial.path)
            elif denial.path.startswith("/"):
                self._sockets.add(denial.path)
            elif self._rules.managed:
                self._host(denial.path, denial.reason)
            elif self._rules.offline:
                self._network(f"connecting to {denial.path}", certain=True)

    def text(self, text: str) -> bool:
        """Take what the output blames; whether it blames anything, the sandbox or not."""
        blamed = False
        for line in text.splitlines():
            found = printed.blamed(line, self._hidden)
            if found is not None:
                phrase = found["phrase"].lower()
                allowed = self._file(printed.path_of(found), phrase)
                # What the owner of a file may not do to it has another reason than its mode.
                blamed = blamed or not (allowed and phrase == printed.NOT_PERMITTED)
            elif (found := printed.EXISTS.search(line)) is not None:
                self._placeholder(printed.path_of(found))
            elif (found := printed.busy(line)) is not None:
                self._mount_point(printed.path_of(found))
            elif (found := printed.GONE.search(line)) is not None:
                self._hidden_tmp(posixpath.normpath(found["path"] or found["quoted"]))
            elif self._rules.offline and printed.NETWORK.search(line):
                self._network("using the network", certain=False)
            elif (found := printed.SOCKET.search(line)) is not None:
                blamed = True
                self._socket((found["url"] or found["path"]).rstrip(".:)"))
        return blamed

    def _hidden(self, path: str) -> bool:
        full = posixpath.normpath(posixpath.join(self._rules.cwd, path))
        return self._rules.access(full) is Access.DENY

    def _file(self, path: str, phrase: str | None = None) -> bool:
        """Take a path that was refused: for certain, or with the phrase that a program printed.

        Whether the rules allow it.
        """
        rules, certain = self._rules, phrase is None
        full = posixpath.normpath(posixpath.join(rules.cwd, path))
        access = rules.access(full)
        protected = rules.protected_at(full) if access is Access.WRITE else None
        if access is Access.WRITE and protected is None:
            return True  # an ordinary failure
        in_tmp = rules.temporary and any(_within(full, place) for place in _TMP)
        own = in_tmp and protected is None and not _within(full, rules.cwd)
        if own and phrase not in (None, printed.READ_ONLY):
            return False  # in its own /tmp; only the folders of a workspace are read-only there
        if access is Access.DENY:
            what = f"reading {self._shown(full)}"
            allow = self._words.read.format(self._shown(full))
            self._add(_Cause(what, self._why_denied(full), allow, certain))
            return False
        if not certain and not self._could(full):
            return False
        if (
            protected is None
            and phrase not in (None, printed.READ_ONLY)
            and _within(full, rules.cwd)
        ):
            return False  # a mode, as that of a script which cannot be executed
        if protected is not None:
            name = posixpath.basename(protected)
            self._write(protected, f"{name} is protected in a workspace", certain)
        elif not rules.write:
            self._write(full, "the sandbox is read-only", certain)
        else:
            self._write(full, "it is outside of what may be written", certain)
        return False

    def _write(self, full: str, rule: str, certain: bool) -> None:
        folder = full
        if posixpath.basename(full) not in self._rules.protected:
            parts = full.split("/")
            names = [i for i, part in enumerate(parts) if part in self._rules.protected]
            folder = "/".join(parts[: names[-1] + 1]) if names else posixpath.dirname(full)
        allow = self._words.write.format(self._shown(folder))
        self._add(_Cause(f"writing {self._shown(full)}", rule, allow, certain))

    def _placeholder(self, path: str) -> None:
        """``File exists`` for a name that the host does not have."""
        full = posixpath.normpath(posixpath.join(self._rules.cwd, path))
        protected = self._rules.protected_at(full)
        if protected == full and self._rules.access(full) is Access.WRITE and self._could(full):
            self._write(full, "an empty one is kept there, so that none can be made", False)

    def _mount_point(self, path: str) -> None:
        """``Device or resource busy``: what is mounted on can be neither moved nor removed."""
        full = posixpath.normpath(posixpath.join(self._rules.cwd, path))
        access = self._rules.access(full)
        if access is Access.DENY or self._rules.protected_at(full) is not None:
            self._file(path, printed.READ_ONLY)
        elif access is Access.WRITE:
            what = f"moving or removing {self._shown(full)}"
            self._add(_Cause(what, "something in it is protected or denied", self._words.off))

    def _hidden_tmp(self, full: str) -> None:
        """``No such file`` for what is in the /tmp of this machine, or in a directory there."""
        rules, above = self._rules, posixpath.dirname(full)
        if not (rules.temporary and self._here):
            return
        shown = [root for root in (*rules.write, *rules.read, rules.cwd) if root != "/"]
        inside = any(_within(full, root) for root in shown)
        around = above in _TMP or any(_within(root, above) for root in shown)
        if not inside and (os.path.lexists(full) or (not around and os.path.lexists(above))):
            allow = self._words.write.format(full if os.path.lexists(full) else above)
            self._add(_Cause(f"reaching {full}", "commands have a /tmp of their own", allow))

    def _network(self, what: str, *, certain: bool) -> None:
        self._add(_Cause(what, "the sandbox has no network", self._words.network, certain))

    def _host(self, place: str, reason: str | None) -> None:
        """Take a refused host; one that a deny names is not allowed by listing it."""
        if reason == _UNLISTED and self._words.host:
            allow = self._words.host.format(place)
            self._add(_Cause(f"connecting to {place}", "no list allows it", allow, certain=True))

    def _socket(self, path: str) -> None:
        path = posixpath.normpath(path)
        certain = any(posixpath.basename(one) == posixpath.basename(path) for one in self._sockets)
        rule = "Unix sockets of the machine are out of reach"
        if not certain and not self._could(path):
            self.missing = path
            return
        self._add(_Cause(f"connecting to {path}", rule, self._words.off, certain))

    def _why_denied(self, full: str) -> str:
        if any(_within(full, path) for path in self._rules.deny):
            return "the profile denies it"
        found = self._rules.glob_at(full)
        return "no rule names it" if found is None else f"the profile denies {found[1]}"

    def _shown(self, full: str) -> str:
        """A path as one would type it in the directory of the command."""
        cwd = self._rules.cwd
        if full == cwd:
            return "."
        return full[len(cwd.rstrip("/")) + 1 :] if cwd != "/" and _within(full, cwd) else full


def _paths(entry: Entry, roots: tuple[bytes, ...]) -> list[str]:
    if entry.path is not None:
        return [_text(normal(entry.path))]
    if entry.special == "root":
        return ["/"]
    if entry.special == "project_roots":
        below = entry.subpath or b""
        return [_text(normal(posixpath.join(root, below) if below else root)) for root in roots]
    if entry.special == "minimal":
        return ["/usr", "/etc", "/bin", "/lib"]
    return []


def _globs(intent: Intent, cwd: bytes) -> tuple[Glob, ...]:
    try:
        return globs_of(intent, cwd)
    except BadIntent:
        return ()  # then nothing was started


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def _within(path: str, root: str) -> bool:
    return within(path.encode("utf-8", "surrogateescape"), root.encode("utf-8", "surrogateescape"))

"""Logging to stderr: one event, one line, nothing in it that acts on a terminal or gives a
secret away.

Stdout belongs to the protocol, so everything goes to stderr.  Modules log with the standard
library as usual (``logging.getLogger(__name__)``); only programs call ``setup``.

What peers and children say ends up in messages.  So control characters are escaped (a log
viewer must not be steered), a line break cannot begin a forged line, and what looks like a
credential is replaced by a fingerprint: equal secrets get equal marks within one run, and the
key of the fingerprint dies with the process.

A log must not slow the program down.  Lines are never waited for (``log_stream``), and one
sentence that is logged again and again is written a few times a minute and counted beyond that.
"""

from __future__ import annotations

import hashlib
import hmac
import json as json_module
import logging
import os
import re
import sys
import time

from handrail.telemetry.log_stream import LogStream

_TRACE_PREFIX = "  | "

# C0, DEL and C1 steer terminals; the separators break lines; the others reorder or hide text.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)

# The credential is the group ``secret``; the text before it is kept for the reader.
_SECRETS = (
    # Authorization: Bearer x / "authorization": "Basic x" / ('authorization', 'x'), and all of
    # these in a quoted string, where a line break is an «n» right before the word.
    # Rather too much than too little: up to the line's end.
    re.compile(
        r"""(?ix) authorization \b [\\"']* \s* [:=,] \s*
        (?: \[? b? \\* (?P<quote>["']) (?P<secret>(?:\\.|(?!(?P=quote))[^\r\n])*)
          | (?P<rest>[^\r\n]+) )"""
    ),
    # Bearer x, in whatever sentence; the words «bearer token(s)» are prose.
    re.compile(r"(?i)bearer(?:[ \t]|\\t)+(?!tokens?\b)(?P<secret>[\w.~+/=-]+)"),
    # A JWT on its own: its first part is JSON that begins with a brace and a quote.
    re.compile(r"(?P<secret>\beyJ[\w-]+\.[\w-]+\.[\w-]*)"),
    # In the query of a URL.
    re.compile(r"(?i)[?&](?:access_|auth_)?(?:token|secret|key|password)=(?P<secret>[^&\s\"'<>]+)"),
)
_MARK = re.compile(r"\[redacted:[0-9a-f]{8}\]")
#: How many different sentences are counted at a time.
_MOST_SENTENCES = 1024
#: How often one sentence passes in each period.
_MOST_ALIKE, _PERIOD_SECONDS = 20, 30.0
_FINGERPRINT_KEY = os.urandom(32)


def escape(text: str) -> str:
    """The text with everything a terminal acts on written as an escape sequence."""
    return _UNSAFE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    char = match[0]
    short = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char)
    if short is not None:
        return short
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def redact(text: str) -> str:
    """The text with credentials replaced by fingerprints."""
    for pattern in _SECRETS:
        text = pattern.sub(_redacted, text)
    return text


def _redacted(match: re.Match[str]) -> str:
    groups = match.groupdict()
    name = "secret" if groups["secret"] is not None else "rest"
    secret = match[name]
    if not secret.strip() or _MARK.fullmatch(secret):
        return match[0]
    digest = hmac.new(_FINGERPRINT_KEY, secret.encode("utf-8", "replace"), hashlib.sha256)
    start, end = match.start(name) - match.start(), match.end(name) - match.start()
    return f"{match[0][:start]}[redacted:{digest.hexdigest()[:8]}]{match[0][end:]}"


class RedactingFilter(logging.Filter):
    """Rewrites each record so that no handler behind it can show a credential.

    A filter of a handler, not of a logger: those see no records of child loggers.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001  a message that does not fit its arguments, or a __str__ that fails
            message = f"{record.msg} (could not be formatted)"
        record.msg = redact(message)
        record.args = None
        if record.exc_info and record.exc_text is None:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = redact(record.exc_text)
        if record.stack_info:
            record.stack_info = redact(record.stack_info)
        return True


class RepeatFilter(logging.Filter):
    """Lets one sentence pass a number of times in each period and counts the rest.

    A sentence is a logger's message before its arguments are filled in, so that a peer which makes
    up a new argument each time is throttled as well.  The first record of the next period has the
    count.
    """

    def __init__(self) -> None:
        super().__init__()
        #: By logger and sentence: when its period began, how often it was logged since.
        self._seen: dict[tuple[str, str], list[float]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        key = record.name, str(record.msg)
        seen = self._seen.get(key)
        if seen is None:
            if len(self._seen) >= _MOST_SENTENCES:
                self._seen.clear()
            self._seen[key] = [record.created, 1]
            return True
        if 0 <= record.created - seen[0] < _PERIOD_SECONDS:
            seen[1] += 1
            return seen[1] <= _MOST_ALIKE
        left_out = int(seen[1]) - _MOST_ALIKE
        seen[:] = record.created, 1
        if left_out > 0:
            record.msg = f"{record.msg} (and {left_out} more like this, left out)"
        return True


class _UtcFormatter(logging.Formatter):
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802  their name
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        return f"{seconds}.{int(record.msecs):03d}Z"


class TextFormatter(_UtcFormatter):
    """``2026-01-31T12:00:00.123Z WARNING handrail.server: sentence``, traces below it."""

    def format(self, record: logging.LogRecord) -> str:
        when = self.formatTime(record)
        first = f"{when} {record.levelname} {record.name}: {record.getMessage()}"
        # A line break in an exception's text starts a line too: the prefix marks it as ours.
        trace = _trace(self, record).splitlines()
        return "\n".join([escape(first), *(_TRACE_PREFIX + escape(line) for line in trace)])


class JsonFormatter(_UtcFormatter):
    """One JSON object per line: time, level, logger, message, and trace if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        trace = _trace(self, record)
        if trace:
            fields["trace"] = trace
        # ASCII output escapes everything unsafe but DEL.
        return json_module.dumps(fields).replace("\x7f", "\\u007f")


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = []
    if record.exc_text:
        parts.append(record.exc_text)
    elif record.exc_info:
        parts.append(formatter.formatException(record.exc_info))
    if record.stack_info:
        parts.append(record.stack_info)
    return "\n".join(parts)


class _Handler(logging.Handler):
    """Writes records to stderr; a second ``setup`` recognizes the first handler by this class."""

    def __init__(self, stream: LogStream) -> None:
        super().__init__()
        self.stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.stream.write(self.format(record))
        except Exception:  # noqa: BLE001  a record that cannot be written must not end its caller
            self.handleError(record)

    def close(self) -> None:
        self.stream.close()
        super().close()


def setup(level: int | str = logging.WARNING, json: bool = False) -> logging.Handler:
    """Send the log of the whole program to stderr.  Calling it again replaces the settings;
    handlers of others are left alone."""
    root = logging.getLogger()
    for handler in [one for one in root.handlers if isinstance(one, _Handler)]:
        root.removeHandler(handler)
        handler.close()
    handler = _Handler(LogStream(_stderr()))
    handler.addFilter(RepeatFilter())
    handler.addFilter(RedactingFilter())
    handler.setFormatter(JsonFormatter() if json else TextFormatter())
    root.addHandler(handler)
    root.setLevel(level.upper() if isinstance(level, str) else level)
    return handler


def _stderr() -> int:
    """The fd behind ``sys.stderr``, which an embedding program may have replaced."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return 2

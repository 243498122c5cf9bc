"""Names of keys -> the bytes a terminal sends for them, for people and models alike.  Pure."""

from __future__ import annotations

from collections.abc import Sequence

from handrail.errors import UsageError

INTERRUPT = "\x03"

_NAMED = {
    "enter": "\r",
    "return": "\r",
    "newline": "\n",
    "tab": "\t",
    "shift-tab": "\x1b[Z",
    "space": " ",
    "escape": "\x1b",
    "esc": "\x1b",
    "backspace": "\x7f",
    "delete": "\x1b[3~",
    "insert": "\x1b[2~",
    "up": "\x1b[A",
    "down": "\x1b[B",
    "right": "\x1b[C",
    "left": "\x1b[D",
    "home": "\x1b[H",
    "end": "\x1b[F",
    "page-up": "\x1b[5~",
    "page-down": "\x1b[6~",
    **{f"f{n}": f"\x1bO{letter}" for n, letter in enumerate("PQRS", 1)},
    **{f"f{n}": f"\x1b[{code}~" for n, code in enumerate((15, 17, 18, 19, 20, 21, 23, 24), 5)},
}
_CONTROL = {letter: chr(ord(letter) - 96) for letter in "abcdefghijklmnopqrstuvwxyz"} | {
    "space": "\0",
    "@": "\0",
    "[": "\x1b",
    "\\": "\x1c",
    "]": "\x1d",
    "^": "\x1e",
    "_": "\x1f",
}


def key_text(keys: Sequence[str], *, words: str = "`chars`") -> str:
    """The bytes that these keys send.

    Raises UsageError naming an unknown key, and ``words`` as the way to send text.
    """
    return "".join(_one(key, words) for key in keys)


def _one(key: object, words: str) -> str:
    if not isinstance(key, str):
        raise UsageError(f"a key is a name such as 'enter' or 'ctrl-c', not {key!r}")
    name = key.strip().lower().replace("_", "-").replace("+", "-")
    if name in _NAMED:
        return _NAMED[name]
    for prefix in ("ctrl-", "c-"):
        if name.startswith(prefix) and name.removeprefix(prefix) in _CONTROL:
            return _CONTROL[name.removeprefix(prefix)]
    for prefix in ("alt-", "meta-", "m-"):
        rest = name.removeprefix(prefix)
        if name.startswith(prefix) and rest:
            return "\x1b" + (key.strip()[-1] if len(rest) == 1 else _one(rest, words))
    if len(key) == 1:
        return key
    raise UsageError(
        f"unknown key `{key}`: use names like enter, tab, up, f1, ctrl-c or alt-x, and {words} for"
        " text"
    )

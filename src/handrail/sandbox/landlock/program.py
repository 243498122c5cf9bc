"""Restrict, then exec: ``python -I -S program.py FD``, for machines without user namespaces.

FD holds one JSON object (see ``request``); nothing of a command reaches this program's own
environment or argv.  Order matters: privileges first, then files, then syscalls, then the command.
Any failure ends with exit code 101 and a sentence, never with the command.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from handrail.sandbox.landlock.ruleset import Rules

#: Exit code if the command could not be sandboxed; it was not run.
REFUSED = 101

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 1, 38, 22
_PR_CAPBSET_DROP, _PR_CAP_AMBIENT, _AMBIENT_CLEAR = 24, 47, 4
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION = 0x20080522
_LAST_CAPABILITY = 63


def request(
    rules: Rules,
    abi: int,
    filters: Sequence[bytes],
    argv: Sequence[bytes],
    cwd: bytes,
    env: Mapping[bytes, bytes],
    arg0: bytes | None = None,
    *,
    lasting: bool = False,
) -> bytes:
    """What the program reads from its fd; ``lasting``: it outlives its parent."""
    return json.dumps(
        {
            "rules": [[os.fsdecode(path) for path in paths] for paths in rules],
            "abi": abi,
            "lasting": lasting,
            "filters": [base64.b64encode(code).decode() for code in filters],
            "argv": [os.fsdecode(word) for word in argv],
            "arg0": None if arg0 is None else os.fsdecode(arg0),
            "cwd": os.fsdecode(cwd),
            "env": {os.fsdecode(k): os.fsdecode(v) for k, v in env.items()},
        }
    ).encode()


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def _prctl(*arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    padded = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments]
    padded += [ctypes.c_ulong(0)] * (5 - len(padded))
    if libc.prctl(*padded) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def drop_privileges() -> None:
    """Drop all capabilities, and prevent any exec from gaining some."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR)
    for capability in range(_LAST_CAPABILITY + 1):
        try:
            _prctl(_PR_CAPBSET_DROP, capability)
        except OSError:
            pass  # unknown to this kernel, or not in our set
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    if libc.capset(header, (ctypes.c_uint32 * 6)()) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def install_filter(code: bytes) -> None:
    """Install one more seccomp filter; it cannot be removed."""
    program = _Program(len(code) // 8, code)
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program))


def _read_all(fd: int) -> bytes:
    parts = []
    os.lseek(fd, 0, os.SEEK_SET)
    while part := os.read(fd, 1 << 16):
        parts.append(part)
    os.close(fd)
    return b"".join(parts)


def restrict_process(asked: Mapping[str, Any]) -> None:
    """Apply all restrictions before the command."""
    from handrail.sandbox.landlock import ruleset

    if not asked["lasting"]:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # 1 and not 0: with 1 the kernel skips a piped core handler too.
    resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    drop_privileges()
    rules = ruleset.Rules(*(tuple(map(os.fsencode, paths)) for paths in asked["rules"]))
    ruleset.restrict(rules, asked["abi"])
    for text in asked["filters"]:
        install_filter(base64.b64decode(text))
    os.chdir(asked["cwd"])


def _refuse(text: str) -> NoReturn:
    sys.stderr.write(f"sandbox: {text}; the command was not run\n")
    sys.stderr.flush()
    os._exit(REFUSED)


def main(arguments: list[str]) -> NoReturn:
    """Sandbox this process and exec the command."""
    try:
        asked = json.loads(_read_all(int(arguments[0])))
        restrict_process(asked)
    except (OSError, ValueError, KeyError) as error:
        _refuse(f"cannot be sandboxed by Landlock: {error}")
    argv = asked["argv"]
    words = argv if asked["arg0"] is None else [asked["arg0"], *argv[1:]]
    # As a shell would find it, in the command's own PATH.
    path = asked["env"].get("PATH", os.defpath)
    places = [argv[0]] if "/" in argv[0] else [os.path.join(d, argv[0]) for d in path.split(":")]
    problem: OSError | None = None
    for place in places:
        try:
            os.execve(place, words, asked["env"])
        except OSError as error:
            if problem is None or not isinstance(error, FileNotFoundError):
                problem = error
    _refuse(f"cannot run {argv[0]}: {problem.strerror if problem is not None else 'not found'}")


if __name__ == "__main__":
    # The package's directory comes last in sys.path: no file beside it shadows a module.
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.path.append(os.path.dirname(package))
    __import__("handrail")
    sys.path.pop()
    main(sys.argv[1:])

"""Programs by what they do with code that is not theirs; the names are in ``tables.txt``.  Pure.

``plain_name`` removes the version from a name, so that one entry covers all of them.
"""

from __future__ import annotations

import posixpath
import re

from handrail.policy.programs import SHELLS
from handrail.policy.tables import entries, names, words

#: ``python3.11``, ``perl5.36``, ``clang-15``, ``node20``, ``python3.11-dbg``.
_VERSION = re.compile(r"(?<=[a-z])[-_.]?[0-9][0-9.]*(-?dbg|d|m|t|w)?$")

#: Shells beyond those whose scripts are read.
FURTHER_SHELLS = frozenset({"cmd", "pwsh", "powershell", "xonsh", "elvish", "nu", "yash", "rksh"})
#: Shells that read no file of the user's before a script, unless they are login shells.
QUIET_SHELLS = frozenset({"bash", "sh", "dash", "ksh", "mksh", "ash", "rbash"})
#: Interpreters: the options whose value is the next word, those with the program's text left out.
INTERPRETERS = {name: frozenset(v) for name, v in entries("interpreters").items()}
#: Programs that run code from their working directory, or from files they are given: settings of a
#: repository, build files, tests, plugins.
_FINDS_CODE = names("finds code")
#: Builtins, not looked up in PATH, that do not change the meaning of other names.
BUILTINS = names("builtins")
CHANGES_DIRECTORY = frozenset({"cd", "pushd", "popd"})
#: After these a name may mean another program, or the program may get other variables.
CHANGES_LOOKUP = names("changes lookup")
#: Variables that hold code, or where code is loaded from, for every program or for many.
CODE_VARIABLES = words("code variables")
#: Variables whose value is a command or options, in which files may be named.
COMMAND_VARIABLES = words("command variables")


def plain_name(program: str) -> str:
    """The name of a program without its directory, its version and its case."""
    name = posixpath.basename(program.replace("\\", "/")).lower().removesuffix(".exe")
    return _VERSION.sub("", name)


def is_shell(program: str) -> bool:
    """True if this is a shell by its name."""
    return plain_name(program) in SHELLS | FURTHER_SHELLS


def runs_what_it_finds(program: str) -> bool:
    """True if this program is known to run code from its working directory or its files."""
    name = plain_name(program)
    return name in _FINDS_CODE or name in INTERPRETERS or is_shell(name)

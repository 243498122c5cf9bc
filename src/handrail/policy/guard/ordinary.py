"""Programs that are known to run nothing that their words name.

No table can name every launcher.  Therefore a program that is not on this list is asked about if
one of its words is the name of a program that a rule forbids or prompts for.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Set as AbstractSet

from handrail.policy.guard.programs import LAUNCHERS, VERB_LAUNCHERS
from handrail.policy.rules import Words

#: Programs that run nothing by their words.
ORDINARY = frozenset({
    # the shell's own
    ":", "[", "[[", "break", "cd", "continue", "dirs", "disown", "echo", "exit", "export", "false",
    "fg", "bg", "getopts", "help", "jobs", "kill", "let", "local", "popd", "printf", "pushd", "pwd",
    "read", "readonly", "return", "set", "shift", "shopt", "test", "times", "true", "type",
    "typeset",
    "declare", "ulimit", "umask", "unset", "wait", "mapfile", "readarray", "command", "source", ".",
    # files and texts
    "basename", "cat", "chgrp", "chmod", "chown", "cksum", "cmp", "column", "comm", "cp", "csplit",
    "cut", "date", "dd", "df", "diff", "dirname", "du", "egrep", "expand", "expr", "fgrep", "file",
    "find", "fmt", "fold", "grep", "head", "hexdump", "iconv", "id", "install", "join", "jq",
    "less",
    "ln", "ls", "lsof", "md5sum", "mkdir", "mkfifo", "mktemp", "more", "mv", "nl", "nproc", "od",
    "paste", "patch", "pgrep", "pkill", "killall", "pidof", "pr", "ps", "readlink", "realpath",
    "rg",
    "ag", "ack", "rm", "rmdir", "sed", "seq", "sha1sum", "sha256sum", "sha512sum", "shred", "sleep",
    "sort", "split", "stat", "strings", "sum", "sync", "tac", "tail", "tar", "tee", "top", "touch",
    "tr", "tree", "truncate", "tsort", "tty", "uname", "unexpand", "uniq", "unzip", "uptime",
    "users",
    "wc", "whereis", "which", "who", "whoami", "xxd", "yes", "yq", "zcat", "gzip", "gunzip",
    "bzip2",
    "xz", "zip", "base64", "bat", "fd", "man", "apropos", "whatis", "ldconfig", "getent",
    "hostname",
    # networks, packages, projects
    "curl", "wget", "ping", "dig", "host", "nslookup", "ip", "ss", "netstat", "scp", "rsync", "apt",
    "apt-get", "apt-cache", "dpkg", "rpm", "brew", "pip", "pip3", "npm", "yarn", "pnpm", "cargo",
    "go",
    "gem", "git", "gh", "make", "pytest", "ruff", "mypy", "black", "eslint", "tsc", "gcc", "g++",
    "cc",
    "clang", "cmake", "systemctl", "journalctl", "docker", "podman", "kubectl",
    "sqlite3",
    # interpreters, whose texts and files are read by other rules
    "bash", "sh", "dash", "zsh", "python", "python3", "node", "perl", "ruby", "awk", "gawk", "mawk",
    "ssh", "eval", "trap", "env", "xargs", "exec", "builtin",
})  # fmt: skip

_READ = frozenset({*LAUNCHERS, *(name for name, _ in VERB_LAUNCHERS)})
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "eval", "xargs"})
_SPELLED = re.compile(r"[\\'\"`$(){}\[\]@*!]+")


def may_launch(words: Words, names: AbstractSet[str]) -> str | None:
    """The name among ``names`` that a program which is not ordinary may run by its words."""
    first = words[0] if words else None
    if not first or posixpath.basename(first) in ORDINARY:
        return None
    known = posixpath.basename(first) in _READ
    for word in words[1:]:
        for part in re.split(r"[\s=:;|&,'\"`(){}]+", word or ""):
            if posixpath.basename(part) in names:
                return posixpath.basename(part)
        if known:
            continue  # what it runs is read on its own
        if word in _SHELLS:
            return word
        # What it takes for a script of a shell may spell a name in other ways: ``z\ap``.
        for part in re.split(r"[\s=;|&,]+", word or ""):
            if _SPELLED.search(part) and _SPELLED.sub("", posixpath.basename(part)) in names:
                return _SPELLED.sub("", posixpath.basename(part))
    return None

"""Common tools with words that run something: find, awk, sed, git, make, ssh, rsync, sqlite3."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from handrail.policy.guard import programs
from handrail.policy.guard.code import awk_writes, check_perl, check_sed
from handrail.policy.guard.values import CALLERS
from handrail.policy.guard.words import GAP, LISTING, NUMBER, Unclear, Word, known

if TYPE_CHECKING:
    from handrail.policy.guard.commands import Simple
    from handrail.policy.guard.verdict import Guard


def _bare(command: Simple) -> Simple:
    return replace(command, writes=[], assignments=[])


def _find(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    at = 1
    while at < len(words):
        word = words[at]
        before = words[at - 1].value
        at += 1
        if word.value is None:
            if (
                before not in ("-name", "-iname", "-path", "-ipath", "-newer", "-size", "-mtime")
                or not word.one
            ):
                guard.require_operand(word, "find")
            continue
        if word.value.startswith("-fprint") or word.value == "-fls":
            guard.files.writes_anything()
        if word.value not in programs.FIND_ACTIONS:
            continue
        inner: list[Word] = []
        while True:
            if at >= len(words):
                raise Unclear("an action of find has no end")
            word = words[at]
            at += 1
            if word.value == ";" or (word.value == "+" and inner and inner[-1].value is None):
                break
            if word.value is None and not word.one:
                raise Unclear("an action of find has words that only the run can tell")
            if word.value is not None and "{}" in word.value:
                word = Word(
                    None, word.value.partition("{}")[0], True, (LISTING,), literal=word.value
                )
            inner.append(word)
        guard.run(inner, _bare(command))


def _awk(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    at = 1
    while at < len(words):
        value = words[at].value
        if value is None or not value.startswith("-") or value == "-":
            break
        at += 1
        if value == "--":
            break
        if value in ("-F", "-v"):
            at += 1
        elif not re.match(r"-[Fv].|--version", value):
            raise Unclear(f"awk has an option that is not known: {value}")
    if at >= len(words):
        return

    def check(text: str) -> None:
        if awk_writes(text):
            guard.files.writes_anything()

    guard.require_text(words[at], "awk", check)


def _sed(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    texts: list[Word] = []
    operands: list[Word] = []
    at, options = 1, True
    while at < len(words):
        word = words[at]
        at += 1
        value = word.value
        if not options or value is None or not value.startswith("-") or value == "-":
            operands.append(word)
        elif value == "--":
            options = False
        elif value in ("--expression", "-e") or re.fullmatch(r"-[nErszu]+e", value):
            texts += words[at : at + 1]
            at += 1
        elif value.startswith("--expression="):
            texts.append(known(value.partition("=")[2]))
        elif value.startswith("-e"):
            texts.append(known(value[2:]))
        elif not re.fullmatch(
            r"-[nErszu]*(?:i[.\w~-]*)?|--(?:quiet|silent|regexp-extended|in-place(?:=[.\w~-]*)?|null-data"
            r"|separate|unbuffered|posix|version|help|debug|sandbox)",
            value,
        ):
            raise Unclear(f"sed has an option that is not known: {value}")
    if not texts:
        texts, operands = operands[:1], operands[1:]
    for word in operands:
        guard.require_operand(word, "sed")
    if any(re.match(r"-[a-zA-Z]*i|--in-place", word.value or "") for word in words[1:]):
        guard.files.edited(operands)
    for text in texts:
        if text.value is None:
            _sed_with_values(guard, text)
        else:
            check_sed(text.value)


def _sed_with_values(guard: Guard, text: Word) -> None:
    """``sed -n "${first},${last}p"``: numbers in an address; else all values must be certain."""
    if not text.literal or not re.fullmatch(r"[\d,$+~pd; ]*", text.literal):
        guard.require_text(text, "sed", check_sed)
        return
    for source in text.sources:
        guard.require_number(source)


def _make(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    at = 1
    while at < len(words):
        value = words[at].value
        at += 1
        if value is None:
            word = words[at - 1]
            name, equals, _ = word.prefix.partition("=")
            if word.template == "-j" + GAP:
                guard.require_number(word.sources[0])
            elif equals and not name.startswith("-") and word.one:
                _make_variable_at_end(guard, name, word)
            else:
                guard.require_operand(word, "make")
            continue
        name, equals, setting = value.partition("=")
        if equals and not value.startswith("-"):
            _make_variable(guard, name, setting)
        elif value in ("-C", "--directory", "-o", "-W"):
            at += 1
        elif value in ("-f", "--file", "--makefile"):
            guard.run_file(words[at] if at < len(words) else known("-"), "make")
            at += 1
        elif value in ("-j", "-l") and at < len(words) and (words[at].value or "").isdigit():
            at += 1
        elif value.startswith("-") and not re.fullmatch(
            r"-[BkKsnitqwrRpde]+|-j\d*|-[ks]*j\d*|-C.+|--(?:silent|quiet|keep-going|dry-run|always-make|no-print-directory"
            r"|jobs(?:=\d+)?|version|help|directory=.+|output-sync.*|trace|warn-undefined-variables)",
            value,
        ):
            raise Unclear(f"make has an option that is not known: {value}")


def _make_variable_at_end(guard: Guard, name: str, word: Word) -> None:
    if programs.FLAG_VARIABLES.fullmatch(name):
        guard.require_flags(word, name)
    if not set(word.sources) <= {LISTING, NUMBER}:
        guard.require_text(
            word, "make", lambda text: _make_variable(guard, name, text.partition("=")[2])
        )


def _make_variable(guard: Guard, name: str, setting: str) -> None:
    name = name.rstrip(":+?!")
    if name in ("SHELL", ".SHELLFLAGS", "MAKEFLAGS", "MAKE") or re.search(
        r"[$`;&|<>()\n]", setting
    ):
        raise Unclear(f"make is told what to run by {name}")
    parts = setting.split()
    guard.check_flags(known(setting), name)
    if parts and CALLERS in parts[0]:
        guard.note([known("./" + parts[0].rpartition("/")[2])])
    elif parts and not parts[0].startswith("-"):
        guard.run([known(part) for part in parts], guard.nothing())


def _git(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    at = 1
    while at < len(words):
        value = words[at].value
        if value is None:
            raise Unclear("the verb of git is known only at the run")
        if not value.startswith("-"):
            break
        at += 1
        if value in ("-C", "--git-dir", "--work-tree"):
            at += 1
        elif value == "-c":
            _git_setting(words[at].value if at < len(words) else None)
            at += 1
        elif not re.fullmatch(
            r"--no-pager|-P|-p|--paginate|--git-dir=.*|--work-tree=.*|--version|--help|--no-optional-locks"
            r"|--literal-pathspecs|--bare|--no-replace-objects",
            value,
        ):
            raise Unclear(f"git has an option that is not known: {value}")
    verb, rest = (words[at].value if at < len(words) else None), words[at + 1 :]
    if verb in programs.GIT_OPAQUE:
        raise Unclear(f"what git {verb} runs is not read")
    if verb is not None and verb not in programs.GIT_VERBS:
        raise Unclear(f"git {verb} may be an alias")
    if verb == "submodule" and any(word.value == "foreach" for word in rest):
        behind = [word for word in rest if word.value not in ("foreach", "--recursive", "--quiet")]
        guard.script(" ".join(_values(behind, "git submodule")), "sh")
        return
    if verb == "bisect" and rest and rest[0].value == "run":
        guard.run(rest[1:], _bare(command))
        return
    if verb == "config":
        _git_config(rest)
        return
    if verb in ("apply", "am"):
        guard.files.apply([*rest, *command.reads], fed=command.fed or command.body is not None)
    if verb in ("mv", "update-index", "checkout-index", "read-tree", "unpack-file"):
        guard.files.writes_anything()
    _git_words(guard, verb, rest)


def _values(words: Sequence[Word], program: str) -> list[str]:
    found = [word.value for word in words if word.value is not None]
    if len(found) != len(words):
        raise Unclear(f"{program} is given a text that only the run can tell")
    return found


def _git_words(guard: Guard, verb: str | None, rest: Sequence[Word]) -> None:
    letters = {"rebase": "x", "grep": "O", "clone": "uc", "am": "", "init": ""}.get(verb or "", "")
    before: str | None = None
    for word in rest:
        value = word.value
        if value is None:
            if before not in ("-m", "-F", "-b", "-B", "-n", "--message") or not word.one:
                guard.require_operand(word, "git")
        elif value == "--":
            break
        elif "ext::" in value or "fd::" in value:
            raise Unclear("git is given a transport that runs a command")
        elif value.startswith("--"):
            option = value.partition("=")[0]
            if any(one.startswith(option) for one in programs.GIT_OPTIONS):
                raise Unclear(f"git {verb} {option} may run something")
        elif value.startswith("-") and set(value[1:]) & set(letters):
            raise Unclear(f"git {verb} {value} may run something")
        before = value


def _git_setting(setting: str | None) -> None:
    key, _, value = (setting or "").partition("=")
    quiet = key.lower() in ("core.pager", "pager.log", "pager.diff", "core.editor") and value in (
        "cat", "less", "true", ":", "",
    )  # fmt: skip
    if not quiet and not programs.GIT_CONFIG_KEYS.fullmatch(key.lower()):
        raise Unclear(f"git is told what to run by {key or 'a setting'}")


def _git_config(rest: Sequence[Word]) -> None:
    names = _values(rest, "git config")
    # Behind the first word that is no option there are no options any more.
    count = next((at for at, name in enumerate(names) if not name.startswith("-")), len(names))
    options, keys = set(names[:count]), names[count:]
    if keys[:1] in (["get"], ["list"]) or {
        "--get", "--get-all", "--list", "-l", "--get-regexp", "--get-urlmatch",
    } & options:  # fmt: skip
        return
    if keys[:1] == ["set"]:
        keys = [name for name in keys[1:] if not name.startswith("-")]
    if len(keys) > 1:
        _git_setting(f"{keys[0]}={keys[1]}")
    if {"-e", "--edit", "-f", "--file", "--blob"} & options or keys[:1] == ["edit"]:
        raise Unclear("git config changes what git runs")


def _ssh(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    at = 1
    while at < len(words):
        value = words[at].value
        if value is None:
            if not words[at].one:
                raise Unclear("ssh has words that only the run can tell")
            guard.require_operand(words[at], "ssh")
            break
        if not value.startswith("-"):
            break
        at += 1
        if re.fullmatch(r"-[4ACNTXnqtvx]+", value):
            continue
        if value == "-o" or value.startswith("-o"):
            setting = value[2:] or (words[at].value if at < len(words) else None)
            at += value == "-o"
            if not programs.SSH_SETTINGS.fullmatch(setting or ""):
                raise Unclear(f"ssh is told what to run by {setting or 'a setting'}")
        elif re.fullmatch(r"-[pilJLRDm]", value):
            at += 1
        else:
            raise Unclear(f"ssh has an option that is not known: {value}")
    if words[at + 1 :]:
        guard.script(" ".join(_values(words[at + 1 :], "ssh")), "sh")
    elif command.text is not None and command.inputs == 1:
        guard.script(command.text, "sh")
    elif command.inputs or command.fed:
        raise Unclear("ssh is fed a text that only the run can tell")


def _rsync(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    at = 1
    while at < len(words):
        value = words[at].value
        at += 1
        if value is None:
            guard.require_operand(words[at - 1], "rsync")
        elif value in ("--rsh", "-e") or re.fullmatch(r"-[a-zA-Z]*e", value):
            guard.script(" ".join(_values(words[at : at + 1], "rsync")), "sh")
            at += 1
        elif re.fullmatch(
            r"--(?:rsh|rsync-path|daemon|config).*|-[a-zA-Z]*e.+|--r|--rs|--rsy.*", value
        ):
            raise Unclear(f"rsync {value} may run something")


def _sqlite(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    texts = [word.value for word in words[1:]] + [command.text]
    if len(words) < 3 and command.text is None:
        raise Unclear("sqlite3 reads commands that are fed at the run")
    for text in texts:
        if text is not None and re.search(
            r"(?m)^\s*\.(?!tables|schema|headers|mode|dump|indexes|quit|exit)|load_extension|edit\s*\("
            r"|^-(?!header|csv|json|column|line|readonly|separator|noheader|list|batch)|writefile",
            text,
        ):
            raise Unclear("sqlite3 is given a command that may run something")
    for word in words[2:]:
        if word.value is None:
            raise Unclear("sqlite3 is given a text that only the run can tell")


def _containers(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    for word in words[1:]:
        if word.value in ("run", "exec", "compose", "buildx", "attach", "debug"):
            raise Unclear(f"what {words[0].value} {word.value} runs is not read")
        if word.value is None:
            guard.require_operand(word, str(words[0].value))


def _cmake(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    """``cmake -DCMAKE_C_COMPILER=clang ..``, ``cmake --build . -- -j4``"""
    for at, word in enumerate(words[1:], 1):
        value = word.value
        if value == "--":
            _make(guard, [known("make"), *words[at + 1 :]], command)
            return
        if value is None:
            guard.require_operand(word, "cmake")
        elif value.startswith(("-P", "-E", "-C", "--script")):
            raise Unclear(f"cmake {value} may run something")
        elif found := re.fullmatch(r"-D(CMAKE_\w+)(?::\w+)?=(.*)", value, re.DOTALL):
            if programs.FLAG_VARIABLES.fullmatch(found[1]):
                guard.check_flags(known(found[2]), found[1])
            elif re.search(r"COMPILER|LAUNCHER|PROGRAM|COMMAND|LINKER|RULE|EMULATOR", found[1]):
                _make_variable(guard, found[1], found[2].replace(";", " "))


def _service(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    """``service NAME`` runs a file of that name, by its path if it has one."""
    for word in words[1:]:
        if not re.fullmatch(r"[\w.@-]+", word.value or ""):
            raise Unclear("service is given a path")


def _rename(guard: Guard, words: Sequence[Word], command: Simple) -> None:
    """Perl's ``rename`` is given a program; the other one, plain texts."""
    guard.files.writes_anything()
    for word in words[1:]:
        if word.value is None:
            guard.require_operand(word, "rename")
        else:
            check_perl(word.value)


HANDLERS: dict[str, Callable[[Guard, Sequence[Word], Simple], None]] = {
    "find": _find,
    **dict.fromkeys(("awk", "gawk", "mawk", "nawk"), _awk),
    **dict.fromkeys(("sed", "gsed"), _sed),
    **dict.fromkeys(("make", "gmake"), _make),
    "git": _git,
    "ssh": _ssh,
    "rsync": _rsync,
    "sqlite": _sqlite,
    "cmake": _cmake,
    "service": _service,
    **dict.fromkeys(("rename", "prename", "file-rename", "rename.ul"), _rename),
    **dict.fromkeys(("docker", "podman", "kubectl"), _containers),
}

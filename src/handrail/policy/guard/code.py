"""Program texts in other languages: which of them certainly run no program.

Each function raises ``Unclear`` unless the text consists of what is known to run nothing, and
returns whether it may write files.
"""

from __future__ import annotations

import re
import sys

from handrail.policy.guard.words import Unclear
from handrail.policy.tables import names

#: Modules of the standard library that start no program and evaluate no text by themselves.
_MODULES = names("python modules")
_FOREIGN_MODULES = names("foreign modules")
_NAMES = names("python names")
_WRITES = names("python writes")


def python_writes(text: str) -> bool:
    """Check a Python program; True if it may write files."""
    return read_python(text)[0]


def read_python(text: str) -> tuple[bool, set[str]]:
    """Check a Python program; whether it may write files, and the modules that it imports."""
    import ast

    if len(text) > 100_000:
        raise Unclear("a Python text is too long to be read")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Unclear("a Python text that cannot be parsed") from None
    writes = False
    modules: set[str] = set()
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            modules.update(names)
            _check_modules(names)
        elif isinstance(node, ast.ImportFrom):
            _check_modules([node.module or ""])
            names = [alias.name for alias in node.names]
            modules.update(names, (node.module or "",))
        elif isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.Name):
            names = [node.id]
        elif isinstance(node, ast.MatchClass):
            names = node.kwd_attrs
        for name in names:
            _check_name(name)
            writes |= name in _WRITES
    return writes, {part for name in modules for part in name.split(".")}


def _check_modules(names: list[str]) -> None:
    for name in names:
        top = name.partition(".")[0]
        own = top in sys.stdlib_module_names and top not in _MODULES
        if own or top in _FOREIGN_MODULES or name in ("logging.config", "http.server", "*"):
            raise Unclear(f"a Python text uses `{name}`")


def _check_name(name: str) -> None:
    hidden = name.startswith(("_", "f_", "gi_", "tb_", "cr_", "ag_")) and name not in (
        "_", "__name__", "__version__", "__file__", "__doc__", "__main__",
    )  # fmt: skip
    starts = name.startswith(("exec", "spawn", "fork", "popen")) or "subprocess" in name
    if hidden or starts or name == "*" or any(part in _NAMES for part in name.split(".")):
        raise Unclear(f"a Python text uses `{name}`")


_AWK_REGEX = re.compile(r"\s*!?\s*/(?:[^/\\\n\[\]]|\\.)*/")


def awk_writes(text: str) -> bool:
    """Check an awk program; True if it may write files."""
    regex = _AWK_REGEX.match(text)
    rest = text[regex.end() :] if regex else text
    if re.search(r"(?<!\|)\|(?!\|)|@|system|\\\n|`", rest):
        raise Unclear("an awk program that may run something")
    return ">" in rest


_SED_ADDRESS = re.compile(r"(?:\d+(?:~\d+)?|\$|/(?:[^/\\\n\[\]]|\\.|\[[^\[\]/\\\n]+\])+/I?)")
_SED_PLAIN = re.compile(r"[pdDPnNgGhHxlz=]|[qQ]\d*")
_SED_LABEL = re.compile(r"[:bt][ ]*[A-Za-z0-9_]*(?=[;\n}]|\Z)")


def check_sed(text: str) -> None:
    """Check a sed program of common commands."""
    at, size = 0, len(text)
    while at < size:
        if text[at] in " \t\n;{}":
            at += 1
            continue
        for _ in range(2):
            found = _SED_ADDRESS.match(text, at)
            at = found.end() if found else at
            if not found or text[at : at + 1] != ",":
                break
            at += 1
            if plus := re.compile(r"[+~]\d+").match(text, at):
                at = plus.end()
                break
        while text[at : at + 1] in (" ", "!") and at < size:
            at += 1
        at = _sed_command(text, at)


def _sed_command(text: str, at: int) -> int:
    letter = text[at : at + 1]
    if letter in ("s", "y"):
        return _sed_substitution(text, at)
    if letter == "{":
        return at + 1
    if letter in ("a", "i", "c"):
        stop = text.find("\n", at)
        line = text[at:] if stop < 0 else text[at:stop]
        if line.endswith("\\") or "\\\n" in text:
            raise Unclear("a sed program that is not followed")
        return len(text) if stop < 0 else stop
    found = _SED_PLAIN.match(text, at) or _SED_LABEL.match(text, at)
    if not found or text[found.end() : found.end() + 1] not in ("", ";", "\n", "}", " "):
        raise Unclear(f"a sed program that is not followed: `{text[at : at + 20]}`")
    return found.end()


def _sed_substitution(text: str, at: int) -> int:
    delimiter = text[at + 1 : at + 2]
    if not delimiter or delimiter in "\\\n" or delimiter.isalnum() or delimiter in " ;[]":
        raise Unclear("a sed program that is not followed")
    begin, parts = at + 2, 0
    at = begin
    while parts < 2:
        char = text[at : at + 1]
        if not char or char == "\n":
            raise Unclear("a sed program that is not followed")
        if char == "\\":
            at += 1
        elif char == delimiter:
            inside = text[begin:at]
            if parts == 0 and inside.count("[") != inside.count("]"):
                raise Unclear("a sed program with a delimiter in brackets")
            parts, begin = parts + 1, at + 1
        at += 1
    flags = re.compile(r"[gpiIm0-9]*(?=[;\n} ]|\Z)").match(text, at)
    if not flags:
        raise Unclear("a sed command with flags that may run something")
    return flags.end()


_PERL_DENIED = re.compile(
    r"system|exec|qx|eval|open|rename|link|\bdo\b|require|\buse\b|\bno\b|fork|syscall|\bsub\b|pipe|socket|kill"
    r"|local|bless|tie|glob|CORE|main|BEGIN|END|INIT|CHECK|format|write|sprintf|pack|__|dump|\bgoto"
    r"|&|`|->|::|[@$%*]\{|\(\?\??\{|<|[A-Z]{4}|\\[xNocu0-9]|ENV|INC|ARGV|\$\^|\$\{"
)
_PERL_FLAGS = re.compile(r"[^A-Za-z0-9_\s$][msixpodualngcr]*e[msixpodualngcre]*(?![A-Za-z0-9_=])")


def check_perl(text: str) -> None:
    """Check a Perl one-liner: substitutions, matches and prints."""
    if _PERL_DENIED.search(text) or _PERL_FLAGS.search(text):
        raise Unclear("a Perl text that may run something")


_NODE_DENIED = re.compile(
    r"child_process|eval|Function|constructor|prototype|__|import|global|this|process(?!\.(?:version"
    r"|argv|platform|cwd|exit|stdout|env\.)\b)|require(?!\()|module|binding|\\[xu]|with|new\b|=>\s*\{"
    r"|worker|cluster|\bvm\b|repl\b|\[(?!\d+\]|\]|'[\w-]+'\]|\"[\w-]+\"\])|`|spawn|exec|fork|dlopen|load"
    r"|Reflect|Proxy|apply|call\b|bind|async|Symbol|inspector"
)
_NODE_WRITES = re.compile(
    r"[wW]rite|[aA]ppend|rename|[lL]ink|[cC]opy|cp\b|cpSync|open|mkdir|rm\b|rmSync"
)
_NODE_REQUIRE = re.compile(
    r"require\((?!['\"](?:\.{1,2}/[\w./-]+|fs|path|os|util|url|crypto)['\"]\))"
)


def node_writes(text: str) -> bool:
    """Check a JavaScript one-liner; True if it may write files."""
    if _NODE_DENIED.search(text) or _NODE_REQUIRE.search(text):
        raise Unclear("a JavaScript text that may run something")
    return bool(_NODE_WRITES.search(text))

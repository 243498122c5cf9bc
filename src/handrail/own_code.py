"""Where handrail's own code is, which no sandboxed command may change.

``places`` lists it: the package, the interpreter and the directories around it, and the module
search path.  A sandbox makes those below its writable roots read-only
(``sandbox/plan/path_rules.py``).  What cannot be read-only, because it is a writable root or lies
above one, is not searched any more from the first sandbox on (``avoid``): a program of ours drops
it from ``sys.path``; in a program that embeds us ``sys.path`` is not ours to change, and a finder
keeps our imports away from it (``safe_finder.py``).
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    #: Absolute name, real path, and one of the kinds below.
    Place = tuple[bytes, bytes, int]

#: We run from it: read-only, missing names covered, and no writable root can be there or below.
CODE = 1
#: Directories and links on the way to it: read-only; a writable root may be there or below.
AROUND = 2
#: Only searched for modules: read-only if possible, else not searched any more.
SEARCHED = 3

PACKAGES = ("site-packages", "dist-packages")
#: A required package: its directory holds all that we were installed with.
_REQUIREMENT = "msgspec"
_MOST_LINKS = 16
#: Variables that name libraries, or where they are, for the interpreter and for OpenSSL.
_PRELOADED = ("LD_PRELOAD", "LD_AUDIT")
_LIBRARIES = (
    *("LD_LIBRARY_PATH", *_PRELOADED, "GCONV_PATH"),
    *("OPENSSL_CONF", "OPENSSL_MODULES", "OPENSSL_ENGINES"),
)
#: Limit for a ``.pth`` file.
_MOST_BYTES = 1 << 20

#: The script of a program of ours; None in one that embeds us.
_script: str | None = None
_places: tuple[Place, ...] | None = None
_reals: dict[str, str] = {"/": "/"}
#: Writable roots of all sandboxes so far, and what is kept read-only in them.
_roots: set[bytes] = set()
_kept: set[bytes] = set()
#: Entries of ``sys.path`` that were checked.
_safe: dict[str, bool] = {}


def own_program(script: str) -> None:
    """Declare this process a handrail program: ``sys.path`` may be changed."""
    global _script
    try:
        _script = os.path.abspath(script) if os.path.isfile(script) else ""
    except FileNotFoundError:  # the current directory is gone
        _script = ""


def places(*programs: str) -> tuple[Place, ...]:
    """All paths that handrail's code comes from, the outermost first; ``programs`` are run too."""
    global _places
    if _places is None:
        found = _collect()
        for program in programs:
            found.setdefault(program, CODE)
        ordered = sorted(found, key=lambda path: path.count("/"))
        _places = tuple(
            (os.fsencode(path), os.fsencode(_real(path)), found[path]) for path in ordered
        )
    return _places


def _collect() -> dict[str, int]:
    found: dict[str, int] = {}

    def add(path: str, kind: int) -> None:
        if path.startswith("/"):
            path = os.path.normpath(path)
            found[path] = min(found.get(path, kind), kind)

    package = os.path.dirname(os.path.abspath(__file__))
    library = os.path.dirname(os.__file__)
    add(_existing_file(package), CODE)
    add(library, CODE)
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    for prefix in prefixes:
        add(prefix, AROUND)
        add(os.path.join(prefix, "pyvenv.cfg"), CODE)  # it names another standard library
        for name in {"lib", sys.platlibdir}:
            if os.path.isdir(os.path.join(prefix, name)):
                add(os.path.join(prefix, name), AROUND)
    for program in (sys.executable, getattr(sys, "_base_executable", None), _script):
        for path in _links(program or ""):
            add(path, AROUND)
            add(os.path.dirname(path), AROUND)
    libraries = tuple(f"{prefix}/{name}/" for prefix in prefixes for name in ("lib", "lib64"))
    installs: list[str] = []
    for entry in sys.path:
        installed = entry.startswith(libraries) or os.path.basename(entry) in PACKAGES
        if installed or os.path.exists(os.path.join(entry, _REQUIREMENT)):
            add(entry, CODE)
            installs.append(os.path.join(entry, _REQUIREMENT))
            if os.path.basename(entry) in PACKAGES:
                for target in _missing_targets(entry):
                    add(target, CODE)
        else:
            add(entry, SEARCHED)
    for variable in _LIBRARIES:
        for entry in _listed(variable, os.environ):
            add(entry, SEARCHED)  # the next start loads libraries from there
    if _has_other_names(package) or any(map(_has_other_names, installs)):
        add(_uv_cache(), SEARCHED)
    site = sys.modules.get("site")
    if getattr(site, "ENABLE_USER_SITE", False):  # searched by the next start, once it exists
        add(getattr(site, "USER_SITE", None) or "", CODE)
    add(sys.pycache_prefix or "", CODE)
    return found


def _listed(variable: str, environ: Mapping[str, str]) -> list[str]:
    """The paths that a variable names."""
    value = environ.get(variable, "")
    return (value.replace(" ", ":") if variable in _PRELOADED else value).split(":")


def _has_other_names(package: str) -> bool:
    """Whether an installer has made hard links instead of copies."""
    try:
        return os.stat(os.path.join(package, "__init__.py")).st_nlink > 1
    except OSError:
        return False


def _uv_cache() -> str:
    """Where uv keeps hard links of the files it has installed; empty if it does not exist."""
    given = os.environ.get("UV_CACHE_DIR")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    cache = given or os.path.join(home, "uv")
    return cache if os.path.isdir(cache) else ""


def _existing_file(path: str) -> str:
    """The archive that a path leads into, or the path itself."""
    whole = path
    while not os.path.lexists(path) and path != "/":
        path = os.path.dirname(path)
    return path if os.path.isfile(path) else whole


def _links(program: str) -> list[str]:
    """A program and its link targets, each by the name under which it is looked up."""
    found: list[str] = []
    while program.startswith("/") and len(found) < _MOST_LINKS:
        found.append(program)
        try:
            target = os.readlink(program)
        except OSError:
            break
        program = os.path.join(os.path.dirname(program), target)
        program = os.path.normpath(program) if ".." not in target else os.path.realpath(program)
    return found


def _missing_targets(directory: str) -> list[str]:
    """Missing paths that ``.pth`` files name: the next start would search them."""
    found = []
    try:
        names = [name for name in os.listdir(directory) if name.endswith(".pth")]
    except OSError:
        return []
    for name in names:
        try:
            fd = os.open(f"{directory}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            lines = os.read(fd, min(os.fstat(fd).st_size, _MOST_BYTES)).splitlines()
        finally:
            os.close(fd)
        for line in lines:
            if line.strip() and not line.startswith((b"#", b"import ", b"import\t")):
                found.append(os.path.join(directory, os.fsdecode(line.strip())))
    return [target for target in found if not os.path.exists(target)]


def _real(path: str, links: int = 0) -> str:
    """Like ``os.path.realpath``, but checks each directory only once."""
    known = _reals.get(path)
    if known is None:
        parent, _, name = path.rpartition("/")
        above = _real(parent, links) if parent else ""
        known = f"{above}/{name}"
        try:
            target = os.readlink(known)
        except OSError:
            pass  # the usual: no link
        else:
            if ".." in target or links >= _MOST_LINKS:
                known = os.path.realpath(known)
            else:
                known = _real(os.path.normpath(os.path.join(above or "/", target)), links + 1)
        _reals[path] = known
    return known


# --- what is not searched any more ---------------------------------------------------------------


def avoid(roots: Iterable[bytes], kept: Iterable[bytes]) -> None:
    """Import nothing from writable roots from now on, except what is read-only in them.

    Call it before the first command that can write there.
    """
    roots, kept = set(roots), set(kept)
    if roots <= _roots and kept <= _kept:
        return
    _roots.update(roots)
    _kept.update(kept)
    _safe.clear()
    if _script is not None:
        if not all(map(is_safe, sys.path)):
            sys.path[:] = [entry for entry in sys.path if is_safe(entry)]
    else:
        from handrail import safe_finder

        safe_finder.install()


def environment() -> dict[str, str]:
    """The environment for another handrail program, without paths that a command can write."""
    given = dict(os.environ)
    for name in ("PYTHONPATH", *_LIBRARIES):
        safe = [entry for entry in _listed(name, given) if _is_safe_there(name, entry)]
        given.pop(name, None)
        if safe:
            given[name] = os.pathsep.join(safe)
    return given


def _is_safe_there(variable: str, entry: str) -> bool:
    by_name = variable in _PRELOADED and "/" not in entry  # looked for among the system's
    return bool(entry) and (by_name or (entry.startswith("/") and is_safe(entry)))


def find_program(name: str) -> str | None:
    """The program of that name in the PATH, but where commands cannot write; None: there is none.

    For programs that handrail itself starts without a sandbox.
    """
    import shutil

    entries = os.environ.get("PATH", os.defpath).split(os.pathsep)
    safe = [entry for entry in entries if entry.startswith("/") and is_safe(entry)]
    return shutil.which(name, path=os.pathsep.join(safe)) if safe else None


def is_safe(entry: str) -> bool:
    """Whether no command can write what is found in an entry of ``sys.path``."""
    known = _safe.get(entry)
    if known is None:
        absolute = entry.startswith("/")
        try:
            name = os.path.normpath(entry if absolute else os.path.join(os.getcwd(), entry))
        except OSError:
            return False  # relative to a directory that is gone
        names = {os.fsencode(name), os.fsencode(_real(name))}
        # Also unsafe if it holds a root: the root could be a module of any name.
        known = not any(is_writable(path) or _holds_a_root(path) for path in names)
        if absolute:
            _safe[entry] = known
    return known


def is_writable(path: bytes) -> bool:
    """Whether a command can write at a path."""
    for root in _roots:
        if _within(path, root):
            around = (kept for kept in _kept if _within(kept, root))
            if not any(_within(path, kept) for kept in around):
                return True
    return False


def _holds_a_root(path: bytes) -> bool:
    return any(_within(root, path) for root in _roots)


def _within(path: bytes, root: bytes) -> bool:
    return path == root or root == b"/" or path.startswith(root + b"/")

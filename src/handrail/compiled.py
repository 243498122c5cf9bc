"""The compiled modules of a start in one file, beside those of the interpreter's own making.

``handrail run`` needs some thirty modules before its command can start.  To find, check and read
one takes longer than to execute it; to read all of them from one file takes as long as for one.
What is in there counts by the same rule as every other compiled file: as long as the source has
the size and the time that it had, and it lies where only whoever may write the package may write.
Without it, or with a stale one, everything is imported as usual, and it is made anew.
"""

from __future__ import annotations

import marshal
import os
import sys
from _frozen_importlib import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Any

    #: Source, its time and size, whether it is a package, and its code apart: not every start
    #: needs each of them.
    Entry = tuple[str, int, int, bool, bytes]

_PACKAGE = os.path.dirname(__file__)
#: Whether there was none that holds.
_wanted = False


class _Finder:
    """Finds what is in the file, and is the loader of it."""

    def __init__(self, entries: dict[str, Entry]) -> None:
        self._entries = entries

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        entry = self._entries.get(name)
        if entry is None:
            return None
        spec = ModuleSpec(name, self, origin=entry[0], is_package=entry[3])  # type: ignore[arg-type]
        spec.has_location = True
        if entry[3]:
            spec.submodule_search_locations = [os.path.dirname(entry[0])]
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """As usual."""

    def exec_module(self, module: ModuleType) -> None:
        code = marshal.loads(self._entries[module.__name__][4])  # noqa: S302 (as a .pyc)
        exec(code, module.__dict__)  # noqa: S102 (as importing does)


def use() -> None:
    """Import from the file from now on, if there is one that holds."""
    global _wanted
    try:
        with open(_place(), "rb") as file:
            version, entries = marshal.loads(file.read())  # noqa: S302 (as a .pyc)
        _wanted = version != sys.hexversion or not all(map(_is_current, entries.values()))
    except (OSError, ValueError, EOFError, TypeError):
        _wanted = True
    if not _wanted:
        sys.meta_path.insert(0, _Finder(entries))


def make() -> None:
    """When there was none: write those of our modules that are loaded, if that may be."""
    place = _place()
    if not _wanted or sys.dont_write_bytecode or not os.access(os.path.dirname(place), os.W_OK):
        return
    temporary = f"{place}.{os.getpid()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        entries = _entries()
        # Never for others to write, whatever the umask.
        with open(os.open(temporary, flags, 0o644), "wb") as file:
            file.write(marshal.dumps((sys.hexversion, entries)))
        os.replace(temporary, place)
    except (OSError, ImportError, AttributeError):
        pass  # no room, or modules that were loaded in a way of their own


def _entries() -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for name, module in list(sys.modules.items()):
        if not name.startswith("handrail."):
            continue
        spec: Any = module.__spec__
        info = os.stat(spec.origin)  # before its code is read: an edit in between counts
        code = marshal.dumps(spec.loader.get_code(name))
        package = spec.submodule_search_locations is not None
        entries[name] = (spec.origin, info.st_mtime_ns, info.st_size, package, code)
    return entries


def _place() -> str:
    level = sys.flags.optimize
    return os.path.join(_PACKAGE, "__pycache__", f"start.{sys.implementation.cache_tag}-{level}")


def _is_current(entry: Entry) -> bool:
    info = os.stat(entry[0])
    return info.st_mtime_ns == entry[1] and info.st_size == entry[2]

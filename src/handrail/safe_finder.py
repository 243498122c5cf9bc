"""Keep handrail's imports out of directories that commands can write, in an embedding program.

The program's own script may lie in the workspace, and so the workspace comes first in ``sys.path``.
"""

from __future__ import annotations

import os
import sys
from _frozen_importlib_external import PathFinder

from handrail import own_code

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import FrameType, ModuleType


def install() -> None:
    """Install the finder for the whole process; a second call does nothing."""
    if not any(isinstance(finder, SafeFinder) for finder in sys.meta_path):
        # Behind the built-in finders, before those that search directories.
        known = PathFinder in sys.meta_path
        at = sys.meta_path.index(PathFinder) if known else len(sys.meta_path)
        sys.meta_path.insert(at, SafeFinder())


class SafeFinder:
    """Finds the standard library and all that handrail imports where no command can write.

    The embedding program's own imports are found as usual, except names of the standard library in
    writable directories.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Called by the import system; raises ModuleNotFoundError for unsafe modules."""
        searched = sys.path if path is None else path
        if all(map(own_code.is_safe, searched)):
            return None
        standard = path is None and name in sys.stdlib_module_names
        ours, direct = _importer(sys._getframe(1))
        if not ours and not standard:
            return None
        safe = [entry for entry in searched if own_code.is_safe(entry)]
        found: ModuleSpec | None = PathFinder.find_spec(name, safe, target)
        if found is not None or (not ours and direct):
            return found
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            if finder is not PathFinder:
                found = finder.find_spec(name, path, target)
                if found is not None:
                    return found
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _importer(frame: FrameType | None) -> tuple[bool, bool]:
    """Whether handrail makes an import, and whether it is in the embedding program itself."""
    direct = True
    while frame is not None:
        module = frame.f_globals.get("__name__") or ""
        if module == "handrail" or module.startswith("handrail."):
            return True, False
        if module == "__main__" or own_code.is_writable(os.fsencode(frame.f_code.co_filename)):
            return False, direct
        if not module.startswith("importlib"):
            direct = False
        frame = frame.f_back
    return False, False

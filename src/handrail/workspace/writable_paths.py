"""A writable path of a profile that is missing is an error, before a command starts.

A sandbox can mount only what exists.  Below a writable directory a path may be missing: commands
can make it.  ``cli/foreground_command.with_writable`` asks the same of ``--writable``; a plan
leaves out what is missing (``sandbox/plan/path_rules.py``), as on the wire.
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from handrail.errors import FilesError, UsageError

if TYPE_CHECKING:
    from handrail.executor.base import Executor
    from handrail.workspace.profile import Profile


async def check_writable(profile: Profile, root: str, executor: Executor) -> None:
    """Raise UsageError for a writable path that is missing and that a command could not make."""
    if not (executor.features.local or executor.features.remote):
        return  # its files need not be those that its commands see
    for path in below_no_other(profile, root):
        try:
            await executor.files.metadata(path)
        except FilesError as error:
            if error.kind == "not_found":
                raise UsageError(
                    f"{path} may be written by the profile and does not exist, so a command could"
                    " neither write nor make it; make it before"
                ) from None


def below_no_other(profile: Profile, root: str) -> list[str]:
    """The writable paths that are below no other one, and not the root itself."""
    paths = {posixpath.normpath(posixpath.join(root, path)) for path in profile.write}
    tops = [path.rstrip("/") + "/" for path in paths]
    return sorted(
        path for path in paths - {root, "/"} if not any(path.startswith(top) for top in tops)
    )

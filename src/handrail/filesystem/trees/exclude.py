"""``exclude``: the paths that a listing or a copy leaves out, with all that is below them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from handrail import glob_pattern
from handrail.filesystem.errors import refusal


class Exclude:
    """The patterns of one call; false without any."""

    __slots__ = ("_patterns",)

    def __init__(self, patterns: Sequence[str], root: bytes) -> None:
        """``root``: of the tree, for errors.  Raises FilesError."""
        try:
            self._patterns: list[re.Pattern[str]] = [
                glob_pattern.translate(pattern.rstrip("/")) for pattern in patterns
            ]
        except ValueError as error:
            raise refusal(str(error), root) from None

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def leaves_out(self, path: bytes) -> bool:
        """Whether this path, relative to the root, is left out."""
        text = glob_pattern.as_text(path)
        return any(pattern.match(text) for pattern in self._patterns)

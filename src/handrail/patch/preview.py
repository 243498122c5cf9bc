"""A patch that is still being written -> the hunks so far.  Pure.

For front ends that show a patch while the model writes it.  The whole text is judged by
``grammar.parse`` in the end; this follows along and may be more trusting: it cannot know
which line will be the last, nor whether a heredoc around the patch will be closed.
"""

from __future__ import annotations

from handrail.patch.grammar import HEREDOC_OPENERS, Machine
from handrail.patch.hunks import Patch
from handrail.patch.white_space import strip


class Preview:
    """Pieces of text in, the patch so far out."""

    def __init__(self) -> None:
        self._machine = Machine()
        self._rest = ""
        self._begun = False

    def feed(self, text: str) -> Patch:
        """Take the next piece, however it was cut, and return the patch so far.

        The last hunk may be incomplete.  A line counts once its newline has come.  Raises
        PatchSyntaxError as soon as the text cannot become a patch any more.
        """
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._line(line.removesuffix("\r"))
        return self.patch

    @property
    def patch(self) -> Patch:
        """The patch so far."""
        hunks = list(self._machine.hunks)
        if self._machine.open_hunk is not None:
            hunks.append(self._machine.open_hunk)
        return Patch(tuple(hunks), self._machine.environment_id)

    def _line(self, line: str) -> None:
        if not self._begun and (not strip(line) or strip(line) in HEREDOC_OPENERS):
            return
        self._begun = True
        if not self._machine.ended:  # what follows is for the final judge
            self._machine.feed(line)

"""Whether a person looks at our output, and colour for one.

A person looks at a terminal.  ``FORCE_COLOR`` says so of any stream, ``NO_COLOR`` takes the colour
away and leaves the tables (both as their web pages have it: set and not empty).  Everything else
gets plain text.  ``rich`` is imported only where a person looks: it takes longer than all of ours.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console


def person_looks(stream: TextIO | None = None) -> bool:
    """Whether a person looks at a stream, stdout by default."""
    stream = sys.stdout if stream is None else stream
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def console(stream: TextIO | None = None) -> Console:
    """The console that writes for a person."""
    from rich.console import Console

    return Console(
        file=sys.stdout if stream is None else stream,
        force_terminal=True,
        no_color=bool(os.environ.get("NO_COLOR")),
        highlight=False,
        soft_wrap=True,
    )

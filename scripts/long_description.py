"""The long description of the package: README.md without links that lead nowhere.

A metadata hook of hatchling.  A package index shows the text away from the repository.  Relative
links become absolute if `[project.urls]` has `Source`; without one their words stay.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

#: `](docs/x.md` and `src="docs/x.svg"`, without a scheme and not an anchor of the page itself.
LINK = re.compile(r'(\]\(|src="|href=")(?![a-z]+:|#)([^)"\s]+)')
#: A whole relative link, and a whole relative picture.
WORDS = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)[^)\s]+\)")


class LongDescription(MetadataHookInterface):
    """Sets `readme`, which pyproject.toml calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the text, with links into the repository if there is an address of it."""
        page = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = metadata.get("urls", {}).get("Source")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": absolute(page, repository) if repository else without_links(page),
        }


def without_links(page: str) -> str:
    """The page with the words of relative links in their place, and without such pictures."""
    return WORDS.sub(lambda found: "" if found[1] else found[2], page)


def absolute(page: str, repository: str) -> str:
    """The page with every relative link absolute: pictures as files, the rest as pages."""

    def link(found: re.Match[str]) -> str:
        kind = "raw" if found[2].endswith((".svg", ".png")) else "blob"
        return f"{found[1]}{repository}/{kind}/main/{found[2]}"

    return LINK.sub(link, page)

"""A hook of mkdocs: addresses from pyproject.toml, all decisions, and pages outside of docs/.

Without an address of the repository, links into it become their words.
"""

from __future__ import annotations

import logging
import re
import tomllib
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

HOME = Path(__file__).resolve().parents[1]
LOG = logging.getLogger("mkdocs.hooks.site")
#: What a browser fetches by itself, from elsewhere.
FETCHED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?https?:[^>]*>|<link\b[^>]*https?:[^>]*>"
)
#: Pages of the repository that are pages of the site too.
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the addresses from where the package has them, and list all pages."""
    urls = tomllib.loads((HOME / "pyproject.toml").read_text())["project"].get("urls", {})
    if "Documentation" in urls:
        config.site_url = urls["Documentation"] + "/"
    if "Source" in urls:
        config.repo_url, config.repo_name = urls["Source"], "handrail"
    docs = HOME / "docs"
    nav = list(config.nav or [])
    listed = set(re.findall(r"[\w-]+\.md", str(nav)))
    more = sorted(page.name for page in docs.glob("*.md") if page.name not in listed)
    if more:
        nav.append({"More": more})  # found by a reader before it has its place
    nav.append(
        {"Decisions": sorted(f"decisions/{one.name}" for one in docs.glob("decisions/*.md"))}
    )
    config.nav = nav
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, with links as seen from docs/ or from the repository's address."""
    for name in PAGES:
        text = (HOME / name).read_text(encoding="utf-8").replace("](docs/", "](")
        text = _linked(text, r"((?:tests|scripts|examples|src)/[^)]*)", config)
        files.append(File.generated(config, name.lower(), content=text))
    return files


def on_page_markdown(markdown: str, config: MkDocsConfig, **_: object) -> str:
    """Give links out of docs/ the repository's address, and blocks a language the site knows."""
    markdown = markdown.replace("```python no-run", "```python")
    return _linked(markdown, r"\.\./([^)]*)", config)


def _linked(text: str, path: str, config: MkDocsConfig) -> str:
    """The text with links to such paths of the repository at its address, if it has one."""
    if config.repo_url:
        return re.sub(rf"\]\({path}\)", rf"]({config.repo_url}/blob/main/\1)", text)
    return re.sub(rf"\[([^\]]*)\]\({path}\)", r"\1", text)


def on_post_page(output: str, page: Page, **_: object) -> str:
    """Warn, which is an error for ``make docs``, of what would be fetched when a page is viewed."""
    for found in FETCHED.findall(output):
        if 'rel="canonical"' not in found:
            LOG.warning("%s fetches from another site: %s", page.file.src_uri, found)
    return output

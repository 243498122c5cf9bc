"""The environment of a child: the policy's, and what every command of an agent needs.  Pure."""

from __future__ import annotations

from collections.abc import Mapping

#: No colours, no pager, no questions about the terminal, one encoding.  These override the rest.
FORCED: Mapping[str, str] = {
    "NO_COLOR": "1",
    "TERM": "dumb",
    "LANG": "C.UTF-8",
    "LC_CTYPE": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "COLORTERM": "",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GH_PAGER": "cat",
    "HANDRAIL_CI": "1",
    # Variables that scripts look for.
    "CODEX_CI": "1",
}


def overlay(extra: Mapping[str, str]) -> dict[str, str]:
    """What is laid over the environment that the policy gives."""
    return {**extra, **FORCED}

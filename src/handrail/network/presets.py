"""Presets: lists of hosts by the name of the ecosystem they belong to, out of ``presets.txt``."""

from __future__ import annotations

from functools import cache

#: The port of hosts that name none.
PORT = 443


class UnknownPreset(ValueError):
    """There is no preset of that name; the sentence names those that there are."""


@cache
def presets() -> dict[str, tuple[str, ...]]:
    """All presets: name to patterns, each with its port."""
    from importlib import resources  # slow to load, and few name a preset

    found: dict[str, tuple[str, ...]] = {}
    text = resources.files(__package__).joinpath("presets.txt").read_text("utf-8")
    for line in text.splitlines():
        name, colon, hosts = line.partition(":")
        if colon and not line.startswith("#"):
            named = tuple(h if ":" in h else f"{h}:{PORT}" for h in hosts.split())
            found[name] = found.get(name, ()) + named
    return found


def patterns_of(name: str) -> tuple[str, ...]:
    """The patterns of one preset; raises UnknownPreset."""
    known = presets()
    if name not in known:
        raise UnknownPreset(f"there is no preset {name!r}; there are {', '.join(sorted(known))}")
    return known[name]

"""Shapes of capability discovery.  Paths are ``file:`` URIs, contents are text."""

from __future__ import annotations

from typing import Any

from handrail.protocol.struct_base import Wire


class RootParams(Wire):
    """One directory to search; ``id`` is the caller's and is returned."""

    id: str
    path: str
    sandbox: dict[str, Any] | None = None


class DiscoverRootsParams(Wire):
    """Directories to search."""

    roots: list[RootParams]


class CapabilityFile(Wire):
    """A file with its whole content."""

    path: str
    contents: str


class PluginFiles(Wire):
    """A plugin's own description, not interpreted."""

    manifest: CapabilityFile
    mcp_config: CapabilityFile | None
    apps_config: CapabilityFile | None


class SkillFiles(Wire):
    """A ``SKILL.md`` and the ``agents/openai.yaml`` beside it."""

    instructions: CapabilityFile
    metadata: CapabilityFile | None


class DiscoveredRoot(Wire):
    """What was found below one root; with ``error`` there is nothing else."""

    id: str
    path: str
    plugin: PluginFiles | None
    skills: list[SkillFiles]
    namespace_manifests: list[CapabilityFile]
    warnings: list[str]
    error: str | None


class DiscoverRootsResult(Wire):
    """One entry for each root, in the order of the request."""

    roots: list[DiscoveredRoot]

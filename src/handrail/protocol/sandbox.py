"""Shapes of a sandbox intent: camelCase outside, snake_case within ``permissions``."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from handrail.protocol.struct_base import Wire


class Special(Struct, kw_only=True):
    """A symbolic root, bound on the machine where the command runs."""

    kind: Literal[
        "root",
        "minimal",
        "project_roots",
        "current_working_directory",
        "tmpdir",
        "slash_tmp",
        "unknown",
    ]
    subpath: str | None = None
    path: str | None = None


class PathEntry(Struct, tag_field="type", tag="path", kw_only=True):
    """One path, as a URI."""

    path: str


class GlobEntry(Struct, tag_field="type", tag="glob_pattern", kw_only=True):
    """A pattern of paths."""

    pattern: str


class SpecialEntry(Struct, tag_field="type", tag="special", kw_only=True):
    """A symbolic root."""

    value: Special


class PermissionEntry(Struct, kw_only=True):
    """The access to one path; ``none`` is another word for ``deny``."""

    path: PathEntry | GlobEntry | SpecialEntry
    access: Literal["read", "write", "deny", "none"]
    missing_path_behavior: Literal["skip"] | None = None


class RestrictedFiles(Struct, tag_field="type", tag="restricted", kw_only=True):
    """Nothing but what the entries allow."""

    entries: list[PermissionEntry]
    glob_scan_max_depth: Annotated[int, Meta(ge=1)] | None = None


class UnrestrictedFiles(Struct, tag_field="type", tag="unrestricted", kw_only=True):
    """All files."""


NetworkAccess = Literal["restricted", "enabled"]


class Managed(Struct, tag_field="type", tag="managed", kw_only=True):
    """handrail builds the sandbox."""

    file_system: RestrictedFiles | UnrestrictedFiles
    network: NetworkAccess


class Disabled(Struct, tag_field="type", tag="disabled", kw_only=True):
    """No sandbox."""


class External(Struct, tag_field="type", tag="external", kw_only=True):
    """The caller protects files itself."""

    network: NetworkAccess


class SandboxParams(Wire):
    """The portable intent: what a command may access, not how that is enforced."""

    permissions: Managed | Disabled | External
    windows_sandbox_level: Literal["disabled", "restricted-token", "elevated"]
    cwd: str | None = None
    workspace_roots: list[str] = field(default_factory=list)
    windows_sandbox_private_desktop: bool = False
    windows_sandbox_proxy_settings_mode: Literal["reconcile", "preserve"] | None = None
    use_legacy_landlock: bool = False
    #: Ours: the directory of ``session/temporary``, to be shown as /tmp and /var/tmp.
    private_tmp: str | None = None

"""Shapes of ``initialize``, ``environment/*``, ``environmentConfig/*`` and ``session/*``."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from handrail.protocol.struct_base import Unsigned, Wire


class InitializeParams(Wire):
    """Begin a session, or resume one."""

    client_name: str
    resume_session_id: str | None = None
    #: Ours: asks for (null) or presents the secret that lets a client take a session over.
    resume_secret: str | UnsetType | None = UNSET
    #: Ours: how long the session outlives its connection, bounded by the server.
    detach_ttl_ms: Unsigned | None = None


class Shell(Wire):
    """The login shell of the user the server runs as."""

    name: str
    path: str


class EnvironmentInfo(Wire):
    """The kind of machine."""

    shell: Shell
    executor_version: str
    provider_id: str
    cwd: str
    user_home_dir: str | None
    platform_os: str
    prepend_path_dirs: list[str]
    temporary_directories: list[str]
    temp_dir: str
    capabilities: dict[str, bool | dict[str, bool]]


class InitializeResult(Wire, omit_defaults=True):
    """The session's id, and its environment."""

    session_id: str
    environment_info: EnvironmentInfo
    #: Ours: for the next ``initialize``, if this one named ``resumeSecret``.
    resume_secret: str | UnsetType = UNSET


class EnvironmentStatus(Wire):
    """Whether commands can be run."""

    status: str


class TemporaryResult(Wire):
    """Where the session's commands may put temporary files, as a URI."""

    path: str


class DetachParams(Wire, forbid_unknown_fields=True):
    """Ours: leave the session; the next connection ends without ending it.

    Output and exits are stored until they are fetched, within the server's bounds.
    """

    #: How long its processes may go on; absent or null: until they end.
    keep_ms: Unsigned | None = None
    #: The ids of the processes whose results are wanted; absent: all, also of those that this
    #: connection starts from now on.
    processes: list[str] | None = None


class ResultParams(Wire, forbid_unknown_fields=True):
    """Ours: read the stored result of a process of a session that was left, ended or not."""

    #: The session in which it ran, which only its client knows.
    session_id: str
    process_id: str
    #: Position in the stored output.
    offset: Annotated[int, Meta(ge=0)] = 0
    #: Remove the result instead: it has been fetched.
    forget: bool = False


class ResultResult(Wire):
    """A part of a stored result."""

    #: What is stored beside the output (``handrail.results.store.About``); null: there is none.
    about: dict[str, Any] | None
    #: Records of output (``handrail.results.record``), as base64; empty at the end.
    data: str = ""


class ServerStatus(Wire):
    """Ours: the server itself."""

    pid: int
    version: str
    started_at_ms: int
    sessions: int
    #: Those that run.
    processes: int


class Empty(Struct, forbid_unknown_fields=True):
    """No parameters: absent, null and ``{}`` are the same."""


class Nothing(Wire):
    """An answer that says only that it was done."""


#: The one object of that shape that handlers answer with.
NOTHING = Nothing()


class ConfigReadParams(Wire):
    """The wanted keys, each as a path of names, and the client's working directory."""

    cwd: str
    config_paths: list[list[str]]
    requirements_paths: list[list[str]]


class ConfigLayer(Wire):
    """The wanted keys of one file, as TOML; relative paths in it start at ``baseDir``."""

    source: str
    base_dir: str
    toml: str


class ConfigLayers(Wire):
    """Later layers win; those of a cloud belong at ``cloudInsertionIndex``."""

    layers: list[ConfigLayer]
    cloud_insertion_index: int


class ConfigReadResult(Wire):
    """What the files of this machine say."""

    user_home_dir: str
    codex_home_dir: str
    hostname: str
    config: ConfigLayers
    requirements: ConfigLayers

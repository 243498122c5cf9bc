"""Shapes of ``environmentConfig/*``."""

from __future__ import annotations

from handrail.protocol.struct_base import Wire


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

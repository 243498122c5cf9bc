"""Holding processes of this machine in a sandbox.  Imported with the first that asks for one."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace

from handrail.errors import ExecutorSpawnFailed, SandboxError, SpawnFailed
from handrail.process import lookup
from handrail.process.spec import ProcessSpec
from handrail.sandbox.profile import Profile
from handrail.sandbox.request import read_intent
from handrail.sandbox.select import Sandbox
from handrail.sandbox.temporary import PREFIX
from handrail.sandbox.verdict import judge

_TEMPORARY = re.compile(rb"(?:/[^/]+)+/%b[0-9a-f]{8}" % PREFIX.encode())


class LocalSandbox:
    """The sandbox of one executor; remembers what an intent came to."""

    def __init__(self) -> None:
        self._sandbox = Sandbox()
        self._last: tuple[Mapping[str, object], bytes, Profile] | None = None

    def contain(self, spec: ProcessSpec, given: Mapping[str, object]) -> ProcessSpec:
        """The spec to start instead; raises ExecutorSpawnFailed, and then nothing was run."""
        if not os.path.isdir(spec.cwd):
            # Inside it would only be a failed program, with an exit code like any other.
            raise ExecutorSpawnFailed(
                f"the working directory {os.fsdecode(spec.cwd)} is no directory here; name one"
            )
        try:
            lookup.check(spec.argv[0], spec.env, spec.cwd)
        except SpawnFailed as error:
            raise ExecutorSpawnFailed(str(error)) from error
        try:
            return replace(self._sandbox.contain(spec, self._profile(spec, given)), judge=judge)
        except SandboxError as error:
            raise ExecutorSpawnFailed(f"failed to prepare process sandbox: {error}") from error

    def _profile(self, spec: ProcessSpec, given: Mapping[str, object]) -> Profile:
        # A caller that keeps its intent is recognised by it, and pays for reading it once.
        if self._last is None or self._last[0] is not given or self._last[1] != spec.cwd:
            intent, base = read_intent(given, spec.cwd)
            profile = self._sandbox.resolve(intent, base)
            # Every name that is protected there would be one more mount.
            own = tuple(rule.path for rule in profile.rules if _TEMPORARY.fullmatch(rule.path))
            self._last = (given, spec.cwd, profile._replace(shared=profile.shared + own))
        return self._last[2]

    def close(self) -> None:
        """Clear away what sandboxes leave behind."""
        self._sandbox.close()

"""Cases of the ``apply_patch`` command and of its interception, on real files."""

from __future__ import annotations

import asyncio
import io
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from handrail.errors import HandrailError
from handrail.executor.local import LocalExecutor
from handrail.patch import report
from handrail.patch.apply import Mode
from handrail.patch.command import run
from handrail.unified_exec.gate import Ended, ExecCall, PatchRequest, Started
from handrail.unified_exec.manager import UnifiedExec
from handrail.unified_exec.settings import Settings
from handrail.unified_exec.tools import ExecCommandArgs, ToolFailed
from tests.conformance.comparison import difference


def _bytes(value: str) -> bytes:
    if value.startswith("@@hex:"):
        return bytes.fromhex(value.removeprefix("@@hex:"))
    return value.encode()


def _lay_out(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_bytes(content))


def _found(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def apply_patch(case: dict[str, Any]) -> str | None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(os.path.realpath(name))
        _lay_out(folder, case["files_before"])
        by_argument = case["input_mode"] == "arg"
        argv = [*([case["patch"]] if by_argument else []), *case.get("extra_args", [])]
        stdin = io.BytesIO(b"" if by_argument else (case["patch"] or "").encode())
        stdout, stderr = io.BytesIO(), io.BytesIO()
        code = run(argv, stdin, stdout, stderr, str(folder), mode=Mode.COMPATIBLE)
        out, err = (
            stream.getvalue().decode().replace(str(folder), "{cwd}") for stream in (stdout, stderr)
        )
        expected = case["expect"]
        after = {name: _bytes(content) for name, content in expected["files_after"].items()}
        return difference(
            exit_code=(expected["exit_code"], code),
            stdout=(expected["stdout"], out),
            stderr=(expected["stderr"], err),
            files_after=(after, _found(folder)),
        )


class _NotIntercepted(HandrailError):
    """The call came as far as a process."""


class _Gate:
    """Lets patches through and no command."""

    async def start(self, call: ExecCall) -> Started:
        raise _NotIntercepted

    async def ended(self, call: ExecCall, ended: Ended) -> Started | None:
        return None

    async def patch_reader(self) -> None:
        return None

    async def patch(self, request: PatchRequest) -> None:
        return None


async def _call(script: str, folder: str) -> tuple[str, str | None]:
    executor = LocalExecutor()
    tools = UnifiedExec(executor, settings=Settings(cwd=folder), gate=_Gate())
    try:
        answer = await tools.exec_command(ExecCommandArgs(cmd=script))
    except ToolFailed as error:
        if isinstance(error.__cause__, _NotIntercepted):
            return "not_intercepted", None
        text = str(error)
        return "rejected" if text == report.EMPTY_PATCH else "verification_error", text
    finally:
        await tools.close()
        await executor.close()
    return "intercepted", answer.text


def apply_patch_intercept(case: dict[str, Any]) -> str | None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(os.path.realpath(name))
        for directory in case["cwd_setup"].get("dirs", []):
            (folder / directory).mkdir(parents=True, exist_ok=True)
        _lay_out(folder, case["cwd_setup"].get("files", {}))
        kind, response = asyncio.run(_call(case["script"], str(folder)))
        expected = case["expect"]
        if response is not None:
            response = _without_seconds(response.replace(str(folder), "{cwd}"))
        wanted = expected["response"]
        if wanted is not None:
            wanted = _without_seconds(wanted)
        return difference(kind=(expected["kind"], kind), response=(wanted, response))


def _without_seconds(response: str) -> str:
    """How long it took is no part of a case: a busy machine takes its time."""
    return re.sub(r"Wall time: [0-9.]+ seconds", "Wall time: N seconds", response)

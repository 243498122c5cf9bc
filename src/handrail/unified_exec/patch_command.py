"""A patch that was sent as a command: verified, approved and applied without a shell."""

from __future__ import annotations

import datetime as dt
import time

from handrail.errors import FilesError, HandrailError, PatchError
from handrail.executor.files import Files
from handrail.executor.patch_files import PatchFiles
from handrail.unified_exec.answer import response_text
from handrail.unified_exec.events import Listener, PatchBegin, PatchEnd
from handrail.unified_exec.gate import Gate, PatchRequest
from handrail.unified_exec.tools import ExecAnswer, ToolFailed


async def intercepted(
    argv: tuple[str, ...],
    cwd: str,
    call_id: str,
    *,
    files: Files,
    gate: Gate | None,
    listener: Listener,
) -> ExecAnswer | None:
    """Apply ``argv`` if it is a patch; None if it is a command.

    Raises ToolFailed with the sentences models know.
    """
    # Most commands are no patch: the patch reader is imported for those that look like one.
    if not _looks_like_a_patch(argv):
        return None
    from handrail.patch import report
    from handrail.patch.apply import applying, verifying
    from handrail.patch.grammar import parse
    from handrail.patch.intercept import BarePatch, recognise
    from handrail.patch.io_steps import AsyncFiles, run_async
    from handrail.patch.plan import resolve

    found = recognise(argv)
    if found is None:
        return None
    if isinstance(found, BarePatch):
        raise ToolFailed(report.BARE_PATCH)
    if found.directory is not None:
        cwd = resolve(found.directory, cwd)
    writer: AsyncFiles = PatchFiles(files)
    try:
        patch = parse(found.text)
        reader = writer if gate is None else await gate.patch_reader() or writer
        changes = await run_async(verifying(patch, cwd), reader)
    except PatchError as error:
        raise ToolFailed(report.verification_failure(error)) from error
    except FilesError as error:
        raise ToolFailed(str(error)) from error
    if not patch.hunks:
        raise ToolFailed(report.EMPTY_PATCH)
    if gate is not None:
        try:
            writer = await gate.patch(PatchRequest(call_id, cwd, patch, changes)) or writer
        except HandrailError as error:
            listener(PatchBegin(call_id, cwd, changes))
            listener(PatchEnd(call_id, "declined", str(error)))
            raise ToolFailed(str(error)) from error
    listener(PatchBegin(call_id, cwd, changes))
    begun = time.monotonic()
    try:
        done = await run_async(applying(patch, cwd), writer)
    except PatchError as error:
        text = report.failure(error)
        listener(PatchEnd(call_id, "failed", text))
        raise ToolFailed(report.answer(1, time.monotonic() - begun, text)) from error
    except BaseException:
        listener(PatchEnd(call_id, "failed", "broken off"))
        raise
    seconds = time.monotonic() - begun
    summary = report.summary(done)
    listener(PatchEnd(call_id, "completed", summary))
    output = report.answer(0, seconds, summary)
    return ExecAnswer(
        call_id=call_id,
        command=argv,
        wall_time=dt.timedelta(seconds=seconds),
        output=output,
        # The patch's own report says how long it took.
        text=response_text(wall_time_s=0.0, output=output),
        raw=output.encode(),
        exit_code=0,
    )


def _looks_like_a_patch(argv: tuple[str, ...]) -> bool:
    return any(
        mark in word for word in argv for mark in ("*** Begin Patch", "apply_patch", "applypatch")
    )

"""What write_stdin sends: text, keys, a new size, an interrupt."""

from __future__ import annotations

from handrail.errors import (
    ExecutorError,
    ExecutorTransportFailed,
    ResizeFailed,
    TerminateFailed,
    UsageError,
    WriteFailed,
)
from handrail.executor.keys import INTERRUPT, key_text
from handrail.unified_exec.process import Process
from handrail.unified_exec.tools import ToolFailed, WriteStdinArgs

#: A write can fail a moment before the exit that made it fail is known.
_EXIT_IS_NEAR = 0.5


async def send(process: Process, args: WriteStdinArgs) -> bool:
    """Do what the arguments ask; True if anything was sent.  Raises ToolFailed."""
    try:
        chars = args.chars + key_text(args.keys)
        if args.resize is not None and not process.exited:
            await process.session.resize(args.resize.rows, args.resize.cols)
    except (UsageError, ResizeFailed) as error:
        raise ToolFailed(f"write_stdin failed: {error}") from error
    if not chars:
        return args.resize is not None
    if process.exited:
        return True
    if not process.origin.tty and chars != INTERRUPT:
        raise ToolFailed(
            "write_stdin failed: stdin is closed for this session; rerun exec_command with tty=true"
            " to keep stdin open"
        )
    try:
        with process.writing():
            if process.origin.tty:
                await process.session.write(chars.encode("utf-8", "surrogatepass"))
            else:
                await process.session.signal("interrupt")
            process.interaction(chars)
    except WriteFailed as error:
        if await process.exit_within(_EXIT_IS_NEAR):
            return True  # the answer has its exit
        raise ToolFailed(f"write_stdin failed: {error}") from error
    except ExecutorTransportFailed as error:
        process.fail(str(error))
        await _end(process)
    return True


async def _end(process: Process) -> None:
    try:
        await process.session.terminate()
    except (ExecutorError, TerminateFailed):
        pass  # the connection to it is lost

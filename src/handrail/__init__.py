"""handrail: an execution runtime for AI agents.

The layers, from the bottom up (``docs/architecture.md`` has the picture):

  errors, telemetry.names         used by all
  keeper                          a program of its own: starts and holds children
  process, filesystem, sandbox    this machine, without any protocol
  protocol, transport             messages, and what moves them
  server / executor               one machine for many clients / the same interface near and far
  policy, patch, orchestrator, unified_exec    what an agent calls
  workspace                       for programs: ``Workspace``, ``AsyncWorkspace``, ``run``
  agent                           for agents: ``AgentShell``
  cli                             the command line
"""

# Nothing is imported here, not even __future__: ``python -m handrail`` would look for it in the
# current directory (``__main__.py``).

# What a type checker sees; at run time a name is imported when it is first used, so that
# ``import handrail`` costs next to nothing.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from handrail.agent.shell import AgentShell
    from handrail.agent.tool_answer import ToolAnswer
    from handrail.errors import (
        ExecutorError,
        ExecutorSpawnFailed,
        ExecutorTransportFailed,
        FilesError,
        HandrailError,
        ProcessError,
        ProcessUnknown,
        ResizeFailed,
        SandboxError,
        SandboxUnavailable,
        TerminateFailed,
        UsageError,
        WriteFailed,
    )
    from handrail.executor.base import WaitReason
    from handrail.executor.files import FileEntry, FileMetadata
    from handrail.orchestrator.approvals import Answer, Approver, Choice, Question
    from handrail.orchestrator.approvers import (
        AllowListApprover,
        CallbackApprover,
        DenyAllApprover,
        QueueApprover,
        TerminalApprover,
    )
    from handrail.process.exit_status import ExitInfo, ExitKind, Usage
    from handrail.process.spec import Limits
    from handrail.version import __version__
    from handrail.workspace.asynchronous import AsyncWorkspace
    from handrail.workspace.detached_store import WorkspaceBusy
    from handrail.workspace.files import AsyncFiles
    from handrail.workspace.lines import Line
    from handrail.workspace.process import AsyncProcess
    from handrail.workspace.profile import Profile
    from handrail.workspace.python_result import CodeError, PythonResult
    from handrail.workspace.python_session import AsyncPythonSession, PythonEnded
    from handrail.workspace.result import (
        CommandFailed,
        Denial,
        Exited,
        Gap,
        Output,
        Result,
        Waited,
    )
    from handrail.workspace.run import run
    from handrail.workspace.shell import AsyncShell, ShellEnded
    from handrail.workspace.synchronous import Workspace
    from handrail.workspace.synchronous_process import Process, WorkspaceFiles
    from handrail.workspace.synchronous_python import PythonSession
    from handrail.workspace.synchronous_shell import Shell

__all__ = [
    "AgentShell",
    "AllowListApprover",
    "Answer",
    "Approver",
    "AsyncFiles",
    "AsyncProcess",
    "AsyncPythonSession",
    "AsyncShell",
    "AsyncWorkspace",
    "CallbackApprover",
    "Choice",
    "CodeError",
    "CommandFailed",
    "Denial",
    "DenyAllApprover",
    "ExecutorError",
    "ExecutorSpawnFailed",
    "ExecutorTransportFailed",
    "ExitInfo",
    "ExitKind",
    "Exited",
    "FileEntry",
    "FileMetadata",
    "FilesError",
    "Gap",
    "HandrailError",
    "Limits",
    "Line",
    "Output",
    "Process",
    "ProcessError",
    "ProcessUnknown",
    "Profile",
    "PythonEnded",
    "PythonResult",
    "PythonSession",
    "Question",
    "QueueApprover",
    "ResizeFailed",
    "Result",
    "SandboxError",
    "SandboxUnavailable",
    "Shell",
    "ShellEnded",
    "TerminalApprover",
    "TerminateFailed",
    "ToolAnswer",
    "Usage",
    "UsageError",
    "WaitReason",
    "Waited",
    "Workspace",
    "WorkspaceBusy",
    "WorkspaceFiles",
    "WriteFailed",
    "__version__",
    "run",
]

_HOMES = {
    "handrail.agent.shell": ("AgentShell",),
    "handrail.agent.tool_answer": ("ToolAnswer",),
    "handrail.executor.base": ("WaitReason",),
    "handrail.executor.files": ("FileEntry", "FileMetadata"),
    "handrail.orchestrator.approvals": ("Answer", "Approver", "Choice", "Question"),
    "handrail.orchestrator.approvers": (
        "AllowListApprover",
        "CallbackApprover",
        "DenyAllApprover",
        "QueueApprover",
        "TerminalApprover",
    ),
    "handrail.process.exit_status": ("ExitInfo", "ExitKind", "Usage"),
    "handrail.process.spec": ("Limits",),
    "handrail.version": ("__version__",),
    "handrail.workspace.asynchronous": ("AsyncWorkspace",),
    "handrail.workspace.files": ("AsyncFiles",),
    "handrail.workspace.lines": ("Line",),
    "handrail.workspace.process": ("AsyncProcess",),
    "handrail.workspace.profile": ("Profile",),
    "handrail.workspace.python_result": ("CodeError", "PythonResult"),
    "handrail.workspace.python_session": ("AsyncPythonSession", "PythonEnded"),
    "handrail.workspace.result": (
        "CommandFailed",
        "Denial",
        "Exited",
        "Gap",
        "Output",
        "Result",
        "Waited",
    ),
    "handrail.workspace.run": ("run",),
    "handrail.workspace.shell": ("AsyncShell", "ShellEnded"),
    "handrail.workspace.detached_store": ("WorkspaceBusy",),
    "handrail.workspace.synchronous": ("Workspace",),
    "handrail.workspace.synchronous_process": ("Process", "WorkspaceFiles"),
    "handrail.workspace.synchronous_python": ("PythonSession",),
    "handrail.workspace.synchronous_shell": ("Shell",),
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'handrail' has no attribute {name!r}")
    from importlib import import_module

    home = next((home for home, names in _HOMES.items() if name in names), "handrail.errors")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

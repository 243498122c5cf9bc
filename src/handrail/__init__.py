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
        AuthenticationFailed,
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
    from handrail.executor.files import FileEntry, FileMetadata, TreeFile
    from handrail.executor.trees.copy_between_machines import Copied, NotCopied
    from handrail.network.settings import Managed
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
    from handrail.workspace.exposure import AsyncExposure
    from handrail.workspace.file_watch import AsyncFileWatch, FileChange, FileWatch
    from handrail.workspace.files import AsyncFiles
    from handrail.workspace.output.lines import Line
    from handrail.workspace.process import AsyncProcess
    from handrail.workspace.profile import Profile, Sandbox, SandboxName
    from handrail.workspace.result import (
        CommandFailed,
        Denial,
        Exited,
        Gap,
        Output,
        Result,
        Waited,
    )
    from handrail.workspace.run_once import run
    from handrail.workspace.sessions.python import AsyncPythonSession, PythonEnded
    from handrail.workspace.sessions.python_result import CodeError, PythonResult
    from handrail.workspace.sessions.shell import AsyncShell, ShellEnded
    from handrail.workspace.synchronous.exposure import Exposure
    from handrail.workspace.synchronous.files import WorkspaceFiles
    from handrail.workspace.synchronous.process import Process
    from handrail.workspace.synchronous.python import PythonSession
    from handrail.workspace.synchronous.shell import Shell
    from handrail.workspace.synchronous.workspace import Workspace

__all__ = [
    "AgentShell",
    "AllowListApprover",
    "Answer",
    "Approver",
    "AsyncExposure",
    "AsyncFileWatch",
    "AsyncFiles",
    "AsyncProcess",
    "AsyncPythonSession",
    "AsyncShell",
    "AsyncWorkspace",
    "AuthenticationFailed",
    "CallbackApprover",
    "Choice",
    "CodeError",
    "CommandFailed",
    "Copied",
    "Denial",
    "DenyAllApprover",
    "ExecutorError",
    "ExecutorSpawnFailed",
    "ExecutorTransportFailed",
    "ExitInfo",
    "ExitKind",
    "Exited",
    "Exposure",
    "FileChange",
    "FileEntry",
    "FileMetadata",
    "FileWatch",
    "FilesError",
    "Gap",
    "HandrailError",
    "Limits",
    "Line",
    "Managed",
    "NotCopied",
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
    "Sandbox",
    "SandboxError",
    "SandboxName",
    "SandboxUnavailable",
    "Shell",
    "ShellEnded",
    "TerminalApprover",
    "TerminateFailed",
    "ToolAnswer",
    "TreeFile",
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
    "handrail.executor.files": ("FileEntry", "FileMetadata", "TreeFile"),
    "handrail.executor.trees.copy_between_machines": ("Copied", "NotCopied"),
    "handrail.network.settings": ("Managed",),
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
    "handrail.workspace.exposure": ("AsyncExposure",),
    "handrail.workspace.file_watch": ("AsyncFileWatch", "FileChange", "FileWatch"),
    "handrail.workspace.files": ("AsyncFiles",),
    "handrail.workspace.output.lines": ("Line",),
    "handrail.workspace.process": ("AsyncProcess",),
    "handrail.workspace.profile": ("Profile", "Sandbox", "SandboxName"),
    "handrail.workspace.sessions.python_result": ("CodeError", "PythonResult"),
    "handrail.workspace.sessions.python": ("AsyncPythonSession", "PythonEnded"),
    "handrail.workspace.result": (
        "CommandFailed",
        "Denial",
        "Exited",
        "Gap",
        "Output",
        "Result",
        "Waited",
    ),
    "handrail.workspace.run_once": ("run",),
    "handrail.workspace.sessions.shell": ("AsyncShell", "ShellEnded"),
    "handrail.workspace.detached_store": ("WorkspaceBusy",),
    "handrail.workspace.synchronous.workspace": ("Workspace",),
    "handrail.workspace.synchronous.exposure": ("Exposure",),
    "handrail.workspace.synchronous.files": ("WorkspaceFiles",),
    "handrail.workspace.synchronous.process": ("Process",),
    "handrail.workspace.synchronous.python": ("PythonSession",),
    "handrail.workspace.synchronous.shell": ("Shell",),
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        # The import system asks for each module before it imports that: no time for a hint.
        if name.startswith("_") or _is_module(name):
            raise AttributeError(f"module 'handrail' has no attribute {name!r}")
        from handrail.name_hints import unknown_attribute

        raise unknown_attribute("handrail", name, __all__)
    from importlib import import_module

    home = next((home for home, names in _HOMES.items() if name in names), "handrail.errors")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def _is_module(name: str) -> bool:
    from os import path
    from sys import modules

    bundle = modules.get("handrail.start_bundle")
    if bundle is not None and bundle.has(f"handrail.{name}"):
        return True  # `handrail run` asks for several
    place = path.join(__path__[0], name)
    return path.exists(f"{place}.py") or path.isdir(place)


def __dir__() -> list[str]:
    return sorted(__all__)

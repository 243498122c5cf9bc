"""``python -I -S self_test.py BWRAP``: check that connections can be made for sandboxed commands.

It takes a kernel with user notifications, no other listener around us, and the right to inspect
processes of a namespace of ours.  Instead of testing each, a sandboxed command connects to itself
once; the exit code tells the result.  A separate program, because it has to fork.
"""

from __future__ import annotations

import os
import sys

_SCRIPT = """
import socket
listener = socket.socket(socket.AF_UNIX)
listener.bind("/dev/shm/rehearsal")
listener.listen()
socket.socket(socket.AF_UNIX).connect("/dev/shm/rehearsal")
"""
_SECONDS = 10.0
#: It took too long, which says nothing about the machine.
UNDECIDED = 75


def main(bwrap: str) -> int:
    """0: it works; UNDECIDED: try again."""
    import platform
    import select

    from handrail.keeper import fork
    from handrail.sandbox.syscalls import seccomp_filter
    from handrail.sandbox.syscalls.pending_calls import PendingCalls
    from handrail.sandbox.syscalls.supervisor import Supervisor

    words = [bwrap, "--unshare-user", "--unshare-pid", "--unshare-net", "--die-with-parent"]
    words += ["--new-session", "--cap-drop", "ALL", "--ro-bind", "/", "/", "--dev", "/dev"]
    words += ["--", sys.executable, "-I", "-S", "-c", _SCRIPT]
    code = seccomp_filter.announcing(platform.machine(), watch=False)
    argv = [os.fsencode(word) for word in words]
    pid, listener = fork.start(argv[0], argv, {}, (), (), fork.Before(code=code))
    Supervisor(listener, PendingCalls())
    pidfd = os.pidfd_open(pid)
    if not select.select([pidfd], [], [], _SECONDS)[0]:
        return UNDECIDED
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    # The package's directory comes last in sys.path: no file beside it shadows a module.
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.path.append(os.path.dirname(package))
    __import__("handrail")
    sys.path.pop()
    os._exit(main(sys.argv[1]))

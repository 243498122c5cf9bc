"""Children of this machine, as a server or an embedding program sees them.

Knows no JSON and no session.  Children are started by the keeper alone
(``process/keeper_client/spawn_children.py``).
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
else:
    import _signal  # the C part: ``signal`` itself would import enum

#: Signals that ask a command line to end.
ENDING_SIGNALS = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP)
#: Signals that a command line passes on to a command that is its own child.
PASSED_SIGNALS = (*ENDING_SIGNALS, _signal.SIGQUIT, _signal.SIGUSR1, _signal.SIGUSR2)
#: Seconds between TERM and KILL for a command whose time is over: here, at a server, and in
#: ``handrail run``, which imports nothing else of this package before its command runs.
TIMEOUT_GRACE = 2.0

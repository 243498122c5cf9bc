"""Children of this machine, as a server or an embedding program sees them.

Knows no JSON and no session.  Children are started by the keeper alone
(``process/keeper_client/launcher.py``).
"""

#: Seconds between TERM and KILL for a command whose time is over: here, at a server, and in
#: ``handrail run``, which imports nothing else of this package before its command runs.
TIMEOUT_GRACE = 2.0

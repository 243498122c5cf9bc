"""Children of this machine, as a server or an embedding program sees them.

Knows no JSON and no session.  Children are started by the keeper alone
(``process/keeper_client/launcher.py``).
"""

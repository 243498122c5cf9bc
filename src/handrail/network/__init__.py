"""Where a sandboxed command may connect to, and the porter that carries its connections.

The decision is pure: ``hosts``, ``patterns``, ``address_classes``, ``config``, ``saved_rules``
and ``decide``.  So are the parsers of what a command sends: ``heads``, ``bodies``, ``socks``; it is
told what ``refusal_replies`` has.  ``porter/`` is a program that accepts, decides, dials and
relays; ``link`` has the messages between it and the server, ``records`` its decisions in shared
memory.
"""

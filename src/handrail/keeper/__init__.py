"""The keeper: a small program that starts children and holds them.

It is older than any server, knows no protocol and no policy, touches no byte of output and
imports the standard library only.  Only ``process/keeper_client/spawn_children.py`` talks to it.
"""

#: A limit the kernel has not looked at since 2.4.25.  Its soft value is inherited by every
#: descendant, whatever session, group or environment it takes, so it tells us whose they are.
RLIMIT_LOCKS = 10
#: How many bytes a family's tag has behind a program that sets it (``seccomp/stub.py``).
TAG_BYTES = 8

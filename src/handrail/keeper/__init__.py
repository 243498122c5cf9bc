"""The keeper: a small program that starts children and holds them.

It is older than any server, knows no protocol and no policy, touches no byte of output and
imports the standard library only.  ``process/keeper_client/launcher.py`` is the only thing that
talks to it.
"""

"""What a child may touch.

``profile.resolve`` an intent to a profile, make a plan of it (``plan/``), wrap a spec
(``bwrap/command.py``); ``choose_sandbox.Sandbox`` does all three and remembers.
"""

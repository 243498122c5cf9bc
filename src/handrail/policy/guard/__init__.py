"""The guard: proves that a script is read with certainty, or says which part is not.

``decide.py`` calls it where a rule forbids or prompts.  It works by allow-lists: syntax (``words``,
``commands``, ``script``), values (``values``), what the shell evaluates itself (``builtins``),
programs that run other programs (``launchers``, ``tools``, ``programs``), files that are written
and run (``files``), and program texts (``code``).  ``verdict`` combines them.  Everything that is
on no list is unclear, and unclear is asked about.
"""

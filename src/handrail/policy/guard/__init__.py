"""The guard: proves that a script is read with certainty, or says which part is not.

``decide.py`` asks it where a rule forbids or prompts.  It works by allow-lists: syntax
(``words``, ``script``), values (``values``), what the shell evaluates itself (``builtins``),
programs that run other programs (``launchers``, ``programs``), and program texts (``code``).
Everything that is on no list is unclear, and unclear is asked about.
"""

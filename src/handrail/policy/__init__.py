"""May this command run?

``decide`` answers that with the rules that match (``rules``); ``load`` and ``language`` read files
of rules, ``amend`` adds one after a «yes, always», ``check`` and ``lint`` implement the command
line.  Reading scripts is split in two on purpose: ``strict_script_reader`` believes nothing (for
allow), ``lenient_script_reader`` and ``wrappers`` see everything (for forbid and ask).  The
programs they know are in ``tables.txt``.

All pure but ``load`` and ``tables`` (read files) and ``amend`` (writes one line).  tree-sitter and
Starlark are imported at the first script and the first rules file, not before.
"""

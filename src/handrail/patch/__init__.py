"""apply_patch: a small patch format for models, located by text instead of line numbers.

white_space, hunks      what a blank is; a patch as data
grammar, preview        text -> hunks; the same while it is still written
seek, rewrite, plan     hunks + contents -> changes
report, hint            the sentences; why a chunk was not found
intercept               recognising a patch inside a shell call    (all pure up to here)
steps                   what is asked of a file system, near or far
writing, commit, apply  changes -> steps: one file, all or none, the ways in
local, command          the files of this machine; the command line
"""

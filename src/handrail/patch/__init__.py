"""apply_patch: a small patch format for models, located by text instead of line numbers.

white_space, hunks              what a blank is; a patch as data
grammar                         text -> hunks
seek, rewrite, plan             hunks + contents -> changes
report                          the sentences
intercept                       recognising a patch in a shell call    (all pure up to here)
io_steps                        what is needed of a file system, near or far
file_steps, commit, apply       changes -> steps: one file, all or none, the entry points
command                         the command line, and the files of this machine
"""

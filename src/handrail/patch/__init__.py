"""apply_patch: a small patch format for models, located by text instead of line numbers.

white_space, hunks     what a blank is; a patch as data
grammar                text -> hunks
seek, rewrite, plan    hunks + contents -> changes        (all pure up to here)
report                 the sentences
steps, apply           changes -> reads and writes on somebody's files
local, command         the files of this machine; the command line
intercept              recognising a patch inside a shell call   (pure)
"""

"""One command, done right: decide, ask, choose the sandbox, run, and if refused, ask again.

settings, calls, requirement        what a call needs, from a frozen snapshot      (pure)
memory, denials, result             what is remembered, offered, handed back       (pure)
approvals, approvers                who is asked
audit, amendments                   what is recorded; rules that are added
course, run                         the order of things
one_shot, backends, patches         commands to their end, as a shell's or a patch; patches
sandboxed_files, network            files inside the sandbox; hosts
"""

"""The tools of an agent: ``exec_command``, ``write_stdin`` and ``read_output`` on any executor.

tools, schemas              arguments and answers; the schemas for a model
gate, events                what may refuse a command; what is reported
wait, truncate, prune       when a call returns, what is shown, which process is pruned (all pure);
                            what is kept: ``executor/output/head_tail.py``, names of keys:
                            ``executor/keys.py``
answer, transcript          an answer and its text; everything a process printed, on disk
spawn_request               what would be started: the shell, with its environment
process, process_table      one process, the open ones; ``process_lifecycle``: their life
send_input, patch_command   input and keys; a patch that was sent as a command
manager                     the calls
"""

"""What an agent calls: ``exec_command``, ``write_stdin`` and ``read_output`` on any executor.

tools, schemas              arguments and answers; how a model is told of them
gate, events                who may say no; what happens
wait, head_tail, truncate,  when a call returns, what is kept, what is shown, who makes room,
prune, response, keys       the text of an answer, names of keys              (all pure)
transcript                  everything a process printed, bounded, on disk
shell, environment          which shell, which environment
session, table, processes   one process; the open ones by id; their lives
manager                     the calls
"""

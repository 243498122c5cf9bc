"""Files of tasks: a command for each line, run once in a fleet, also across kills of the driver.

    task_file      the tasks, their digests and commands
    results_file   one line for each task that has ended; locked, cut lines dropped
    journal        which tasks have begun, and where: written before they do
    resume         what a resumed run does with each task: skip, run, adopt or lost; pure
    one_task       a task in its workspace: start, wait, record
    runner         all of it on a fleet

A task that has begun is in the journal before it starts, and its result is on disk before its
workspace is released.  So at any moment a killed driver leaves one of: no trace (run it), a
workspace with the process (adopt it), a result (skip it), or neither workspace nor result (lost).
"""

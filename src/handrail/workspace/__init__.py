"""Workspaces: a directory, on this machine or another, in which commands are run.

Everything is written once, as coroutines (``asynchronous``, ``process``, ``files``); the names
without ``Async`` call them through ``loop_thread``.
"""

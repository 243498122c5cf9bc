"""The front door: a directory, near or far, in which commands are run.

Everything is written once, as coroutines (``asynchronous``, ``process``, ``files``); the names
without ``Async`` hand over to them through ``bridge``.
"""

"""Trees of files between two machines.

base                                 the contract: list, read, write, in bounded calls
local, sandboxed, remote, by_calls   its implementations
copy_between_machines                a tree from one machine to another
"""

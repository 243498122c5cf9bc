"""Start a child under a seccomp filter that reports its syscalls."""

#: Those for which the program that installs the filter can be built (``stub.py``).
MACHINES = ("x86_64",)

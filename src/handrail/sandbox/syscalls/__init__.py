"""The seccomp filter, and the supervisor that answers the syscalls it reports."""

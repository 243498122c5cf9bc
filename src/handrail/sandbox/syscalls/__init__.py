"""The seccomp filter, and the supervisor that answers the calls it announces."""

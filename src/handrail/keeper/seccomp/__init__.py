"""Start a child under a seccomp filter that reports its syscalls."""

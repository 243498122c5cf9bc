"""The seccomp filter, and the supervisor that answers the syscalls it reports."""

#: Machines with filters: AUDIT_ARCH_* of the kernel, and the column in ``seccomp_filter.py``.
ARCHES = {"x86_64": (0xC000003E, 1), "aarch64": (0xC00000B7, 2)}

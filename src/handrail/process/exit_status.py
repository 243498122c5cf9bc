"""Read the exit status of a process that is not our child from the kernel.

Linux 6.15 and later keep the status with the pidfd once its parent has reaped the process
(``PIDFD_GET_INFO``).  Where that is not so the answer is "not known", and never a guess.
"""

from __future__ import annotations

import fcntl
import struct

_INFO = struct.Struct("<QQ11Ii")  # mask, cgroup, eleven ids, exit status
_PIDFD_GET_INFO = 0xC000_FF0B | _INFO.size << 16
_INFO_EXIT = 1 << 3


def exit_status(pidfd: int) -> int | None:
    """The wait status of an ended process, or None while its parent has not taken it.

    Raises OSError where the kernel does not keep it.
    """
    asked = bytearray(_INFO.size)
    struct.pack_into("<Q", asked, 0, _INFO_EXIT)
    fcntl.ioctl(pidfd, _PIDFD_GET_INFO, asked)
    fields = _INFO.unpack(asked)
    return int(fields[-1]) & 0xFFFF if fields[0] & _INFO_EXIT else None

"""Numbers of the system calls that filters name.  Pure."""

from __future__ import annotations

#: Machines with filters: AUDIT_ARCH_* of the kernel, and the column of the table below.
ARCHES = {"x86_64": (0xC000003E, 1), "aarch64": (0xC00000B7, 2)}

#: Name, number on x86_64, number on aarch64, where some calls do not exist.
_TABLE = """
    acct 163 89   add_key 248 217   bpf 321 280   chmod 90 -   chown 92 -   chroot 161 51
    clone 56 220   clone3 435 435   connect 42 203   creat 85 -   delete_module 176 106
    fanotify_init 300 262   fchmod 91 52   fchmodat 268 53   fchmodat2 452 452   fchownat 260 54
    finit_module 313 273   fsconfig 431 431   fsmount 432 432   fsopen 430 430   fspick 433 433
    init_module 175 105   io_uring_enter 426 426   io_uring_register 427 427
    io_uring_setup 425 425   ioctl 16 29   ioperm 173 -   iopl 172 -   ioprio_set 251 30
    kcmp 312 272   kexec_file_load 320 294   kexec_load 246 104   keyctl 250 219   lchown 94 -
    link 86 -   linkat 265 37   migrate_pages 256 238   mkdir 83 -   mkdirat 258 34
    mknod 133 -   mknodat 259 33   mount 165 40   mount_setattr 442 442   move_mount 429 429
    move_pages 279 239   mq_open 240 180   mq_unlink 241 181   msgctl 71 187   msgget 68 186
    msgrcv 70 188   msgsnd 69 189   open 2 -   open_by_handle_at 304 265   open_tree 428 428
    open_tree_attr 467 467   openat 257 56   openat2 437 437   perf_event_open 298 241
    pidfd_getfd 438 438   pivot_root 155 41   prlimit64 302 261   process_madvise 440 440
    process_mrelease 448 448   process_vm_readv 310 270   process_vm_writev 311 271
    ptrace 101 117   quotactl 179 60   quotactl_fd 443 443   reboot 169 142   rename 82 -
    renameat 264 38   renameat2 316 276   request_key 249 218   rmdir 84 -
    sched_setaffinity 203 122   sched_setattr 314 274   sched_setparam 142 118
    sched_setscheduler 144 119   semctl 66 191   semget 64 190   semop 65 193
    semtimedop 220 192   sendmmsg 307 269   sendmsg 46 211   sendto 44 206   setns 308 268
    setpriority 141 140   shmat 30 196   shmctl 31 195   shmget 29 194   socket 41 198
    socketpair 53 199   swapoff 168 225   swapon 167 224   symlink 88 -   symlinkat 266 36
    syslog 103 116   truncate 76 45   umount2 166 39   unlink 87 -   unlinkat 263 35
    unshare 272 97   userfaultfd 323 282
"""


def numbers(arch: str) -> dict[str, int]:
    """The numbers by name; raises KeyError for an architecture that is not in the table."""
    words = _TABLE.split()
    found = zip(words[::3], words[ARCHES[arch][1] :: 3], strict=True)
    return {name: int(number) for name, number in found if number != "-"}

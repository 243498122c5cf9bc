"""What bench/fleet.py reads of processes: CPU time to the microsecond, memory that is their own."""

from __future__ import annotations

import ctypes
import gc
import os
import time


def cpu_seconds(*pids: int) -> float:
    """CPU time of all threads of these processes; finer than the ticks of /proc/PID/stat."""
    total = 0
    for pid in pids:
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                    total += int(file.read().split()[0])
        except OSError:
            continue
    return total / 1e9


def own_cpu() -> float:
    """CPU time of this process."""
    return time.process_time()


def memory_kib(pid: int | str = "self") -> int:
    """Private memory of a process."""
    if pid == "self":
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
    private = 0
    with open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            if line.startswith(("Private_Dirty:", "Private_Clean:")):
                private += int(line.split()[1])
    return private

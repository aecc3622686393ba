"""Aggregations that users of bpftrace and BCC know by name, each one expression of the language.

Tools about files, sockets and disks are not here: spans do not tell them. Of system calls they tell those in which
threads wait.
"""

from __future__ import annotations

READY: dict[str, str] = {
    # How long threads waited for a CPU.
    "runqlat": "runqlat = quantize(waitcpu)",
    "runqslower": "runqslower[pid, tid, comm] = quantize(waitcpu) / waitcpu > 10ms /",
    # How long threads ran without leaving the CPU, and how often they left it.
    "cpudist": "cpudist = quantize(runlength)",
    "cswch": "cswch[execname, pid] = sum(switches)",
    # On the CPU, by stack.
    "profile": "profile[execname, ustack] = sum(oncpu)",
    "cpuuse": "cpuuse[cpu] = sum(oncpu)",
    # Off the CPU, by stack: all of it, blocked on a lock, woken by whom.
    "offcpu": "offcpu[execname, ustack] = sum(offcpu)",
    "offcputime": "offcputime[execname, ustack] = sum(offcpu)",
    "offcpudist": "offcpudist = quantize(offcpu)",
    "futex": "futex[execname, ustack] = quantize(lock)",
    "offwaketime": 'offwaketime[waker, execname, ustack] = sum(offcpu) / state != "wait" /',
    "wakeuptime": 'wakeuptime[waker, execname] = sum(offcpu) / state != "wait" /',
    # Whose wake-ups ended whose waits: how often, and how long on average (er_print -wakers).
    "wakers": 'wakers[waker, wakertid, comm, tid, state] = avg(offcpu) / state != "wait" /',
    # In which system calls threads wait: for how long in all, and each time.
    "syscallwait": 'syscallwait[execname, syscall] = sum(offcpu) / state != "wait" /',
    "syscallwaitdist": 'syscallwaitdist[syscall] = quantize(offcpu) / state != "wait" /',
    # What waiting for pages costs: the nearest to biolatency that spans tell.
    "faultlat": "faultlat = quantize(fault)",
    "faults": "faults[execname, state, ustack] = sum(fault)",
    # Stopped by job control or a debugger.
    "stopped": "stopped[execname, pid] = sum(stopped)",
}

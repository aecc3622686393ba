"""Events of whole CPUs, whatever runs there: what the kernel is profiled by. See ``opening`` for those of programs.

Per CPU, each kind with a ring of its own:

    clock   cpu-clock at the profiling interval, which strikes while the CPU is idle, too: the kernel's call chain, and
            of programs the user registers and a copy of the stack
    task    processes, threads and names
    map     executable mappings

A clock of the kernel's comes by an interrupt: what runs with interrupts off is met where they are on again. Nothing is
to be had per thread here, such as its own clock or its switches: that would be ten times the records.
"""

from __future__ import annotations

import errno
import os

from collector.clock import NS_PER_MS, NS_PER_S
from collector.engines.perf.opening import REGS_USER_X86, Opened, advice
from collector.errors import EngineRefused
from collector.linux import abi, perf

_FLAGS = abi.SAMPLE_ID_ALL | abi.USE_CLOCKID | abi.WATERMARK | abi.DISABLED
_WHO = abi.SAMPLE_TID | abi.SAMPLE_TIME | abi.SAMPLE_CPU
_STACK = _WHO | abi.SAMPLE_CALLCHAIN | abi.SAMPLE_REGS_USER | abi.SAMPLE_STACK_USER
_RARE_NS = 5 * NS_PER_MS
_STACK_BYTES, _LEAST_STACK_BYTES, _NO_STACK_BYTES = 32 << 10, 16 << 10, 8
_RECORD_BYTES = 1536  # beside the copy of the stack: a call chain of 127, above all
_RING_SECONDS = 8  # while load objects are met first, which may take a second each, nobody comes to empty it
_LIFE_RING_BYTES = 1 << 21
_ALL_CLOCKS_BYTES = 1 << 28  # of all CPUs
_LEAST_RING_BYTES = 1 << 17
ALLOWED_LEVEL = 0  # of kernel.perf_event_paranoid: up to here anybody may look at whole CPUs


def open_machine(interval_ns: int, *, stacks: bool) -> Opened:
    """Opens the events on every online CPU; ``Rings.enable`` starts them. ``stacks``: of programs, the user's part too.
    Raises EngineRefused with what to do."""
    stack_bytes = (_STACK_BYTES if interval_ns >= _RARE_NS else _LEAST_STACK_BYTES) if stacks else _NO_STACK_BYTES
    clock = abi.pack_attr(config=abi.SW_CPU_CLOCK, period=interval_ns, sample_type=_STACK, watermark=0,
                          flags=_FLAGS | abi.EXCLUDE_CALLCHAIN_USER, regs_user=REGS_USER_X86, stack_user=stack_bytes,
                          read_format=perf.loss_format())
    task, maps = (abi.pack_attr(config=abi.SW_DUMMY, period=0, sample_type=_WHO, watermark=0, flags=_FLAGS | flags)
                  for flags in (abi.COMM | abi.COMM_EXEC | abi.TASK, abi.MMAP | abi.MMAP2))
    specs = [perf.EventSpec("clock", clock, _clock_ring_bytes(interval_ns, stack_bytes)),
             perf.EventSpec("task", task, _LIFE_RING_BYTES), perf.EventSpec("map", maps, _LIFE_RING_BYTES)]
    try:
        rings = perf.open_rings([-1], specs)
    except OSError as err:
        level = _level()
        if err.errno in (errno.EACCES, errno.EPERM) and os.geteuid() and level > ALLOWED_LEVEL:
            raise EngineRefused(f"whole CPUs are for root to look at (kernel.perf_event_paranoid is {level}): run as "
                                f"root, or sudo sysctl kernel.perf_event_paranoid={ALLOWED_LEVEL} "
                                "kernel.kptr_restrict=0") from err
        raise EngineRefused(advice(err)) from err
    opened = Opened(rings, interval_ns, True, stack_bytes, False, frozenset({"kernel"}))
    opened.most_per_s = {}  # nothing rests: who is not told of a mapping asks /proc
    return opened


def _clock_ring_bytes(interval_ns: int, stack_bytes: int) -> int:
    """Room for some seconds of samples, within what all CPUs together may have. The kernel wakes us at half of it."""
    wanted = int(_RING_SECONDS * NS_PER_S / interval_ns * (stack_bytes + _RECORD_BYTES))
    most = _ALL_CLOCKS_BYTES // len(perf.online_cpus())
    return max(min(1 << wanted.bit_length(), 1 << most.bit_length() - 1), _LEAST_RING_BYTES)


def _level() -> int:
    with open("/proc/sys/kernel/perf_event_paranoid", encoding="ascii") as file:
        return int(file.read())

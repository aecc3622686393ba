"""The watchdog of ``background``, a process of its own: ``python -I -S watchdog.py TID``, run as a file.

Of its standard input it reads a byte when the thread begins to stand back, its patience, and 0 when that is over.
Where the patience ends first, the thread gets its policy back, again and again until it has said 0: it may have lost
its CPU between what it told and what it did, and have the idle policy but now. A process, since no thread of the
collector's could do it: the one that stands back may hold the interpreter's lock while it waits for a CPU. Says
``READY`` first, once it has tried on itself that there is a way back. Ends with whoever writes. Needs nothing but
built-in modules.
"""

from __future__ import annotations

import os
import select
import sys

PATIENCE_MS = 2  # the unit
_AGAIN_MS = 10
READY = b"r"


def watch(tid: int) -> None:
    """Until there is nobody to watch over. Raises OSError where the kernel does not let us, and when the thread is
    gone."""
    os.setsid()  # no signal of a terminal is for it
    normal = os.sched_param(0)
    os.sched_setscheduler(0, os.SCHED_IDLE, normal)
    os.sched_setscheduler(0, os.SCHED_OTHER, normal)
    os.write(1, READY)
    poller = select.poll()
    poller.register(0, select.POLLIN)
    while told := os.read(0, 1):
        wait_ms = told[0] * PATIENCE_MS
        while told[0] and not poller.poll(wait_ms):
            os.sched_setscheduler(tid, os.SCHED_OTHER, normal)
            wait_ms = _AGAIN_MS


if __name__ == "__main__":
    try:
        watch(int(sys.argv[1]))
    except OSError:
        os._exit(1)
    os._exit(0)

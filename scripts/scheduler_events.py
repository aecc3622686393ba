"""How long threads of redis ran, waited for a CPU and were blocked, by the scheduler's own events: ``perf record``."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

RUN, WAIT, BLOCKED = "run", "wait", "blocked"
_SWITCH = re.compile(r"^\s*(\d+)\s+(\d+)\.(\d{9}): PERF_RECORD_SWITCH_CPU_WIDE (IN|OUT)( preempt)?")
_WAKE = re.compile(r"^\s*\S+\s+(\d+)\.(\d{9}): +sched:(sched_waking|sched_wakeup_new): .*?pid=(\d+) prio")
_EXEC = re.compile(r"^\s*\S+\s+(\d+)\.(\d{9}): +sched:sched_process_exec: .*?pid=(\d+)")


def with_tracefs(unshare: str, *command: str) -> list[str]:
    """The command where tracefs is mounted, which it is not everywhere; for it alone."""
    mount = "mountpoint -q /sys/kernel/tracing || mount -t tracefs nodev /sys/kernel/tracing"
    return [unshare, "-m", "sh", "-c", f'{mount}; exec "$@"', "sh", *command]


class SchedulerEvents:
    """``perf record`` of redis' switches and wake-ups on the whole machine; tracefs is mounted for it alone.

    Switches by records of their own: of the tracepoint's events, those on an idle CPU are missing now and then.
    """

    NAMES = ("redis-*", "bio_*", "jemalloc*")  # of redis' threads

    def __init__(self, perf: str, unshare: str, directory: Path) -> None:
        self._perf, self._unshare, self._data = perf, unshare, directory / "sched.data"
        self._recording: subprocess.Popen[str] | None = None

    def _in_namespace(self, command: str) -> list[str]:
        return with_tracefs(self._unshare, *shlex.split(f"{self._perf} {command}"))

    def __enter__(self) -> SchedulerEvents:
        """Begins when events are being recorded."""
        of_redis = " || ".join(f'comm ~ "{name}"' for name in self.NAMES)
        events = [f"-e sched:{event} --filter '{of_redis}'" for event in ("sched_waking", "sched_wakeup_new")]
        record = ("record -a -r 1 -k CLOCK_MONOTONIC -m 4096 --switch-events "
                  f"-o {self._data} -e sched:sched_process_exec")
        self._recording = subprocess.Popen(self._in_namespace(" ".join([record, *events])), text=True,
                                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 10
        while not (self._data.exists() and self._data.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._recording is not None
        self._recording.send_signal(signal.SIGINT)
        self._recording.communicate(timeout=30)

    def lines(self) -> Iterator[str]:
        """The events in order of time, and where some were lost."""
        fields = "--ns --show-lost-events --show-switch-events -F tid,time,event,trace"
        script = self._in_namespace(f"script -i {self._data} {fields}")
        with subprocess.Popen(script, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            yield from process.stdout


def times_of(lines: Iterator[str], tids: set[int]) -> tuple[dict[int, dict[str, float]], int]:
    """Seconds that threads ran, waited for a CPU and were blocked, from their birth or exec to their end.

    And how many switches do not follow from those before: events are missing, whether perf says so or not.
    """
    n_missing = 0
    spent: dict[int, dict[str, float]] = defaultdict(lambda: dict.fromkeys((RUN, WAIT, BLOCKED), 0.0))
    doing: dict[int, tuple[str, float]] = {}

    def now(tid: int, what: str, time_s: float) -> None:
        before, since = doing.get(tid, ("", time_s))
        if before:
            spent[tid][before] += time_s - since
        doing[tid] = (what, time_s)

    for line in lines:
        n_missing += "PERF_RECORD_LOST" in line
        switch = _SWITCH.match(line)
        if switch is not None:
            tid, time_s, leaves = int(switch[1]), int(switch[2]) + int(switch[3]) * 1e-9, switch[4] == "OUT"
            if tid in tids:
                n_missing += (doing.get(tid, (RUN if leaves else WAIT,))[0] == RUN) != leaves
                now(tid, (WAIT if switch[5] else BLOCKED) if leaves else RUN, time_s)
            continue
        exec_ = _EXEC.match(line)
        if exec_ is not None and int(exec_[3]) in tids:
            spent.pop(int(exec_[3]), None)
            doing[int(exec_[3])] = RUN, int(exec_[1]) + int(exec_[2]) * 1e-9
        wake = _WAKE.match(line)
        if wake is not None and int(wake[4]) in tids and doing.get(int(wake[4]), (BLOCKED,))[0] == BLOCKED:
            now(int(wake[4]), WAIT, int(wake[1]) + int(wake[2]) * 1e-9)
    return spent, n_missing

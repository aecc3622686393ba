"""What this user may record on this machine, found out by trying: the table of ``collect --check``.

Every line says what is had, and where something is lacking, what is lost and the one command that would give it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from collector.clock import INTERVAL_ON_NS
from collector.engines import perf_open
from collector.engines.kernel_code import KernelCode
from collector.errors import EngineRefused
from collector.linux import perf, proc


@dataclass(frozen=True)
class Finding:
    """One line: a facility, whether it is had, and in words what that means."""

    facility: str
    had: bool
    meaning: str


def findings() -> list[Finding]:
    """All lines, from the most important down. Opens events on this very process and closes them again."""
    perf_events = _perf_events()
    return [perf_events, _kernel_mode(perf_events.had), _kernel_symbols(), _tracepoints(), _locked_memory(), _ptrace()]


def table() -> list[str]:
    """The findings as text, with the engine that would be taken."""
    found = findings()
    width = max(len(finding.facility) for finding in found)
    lines = [f"{'yes' if finding.had else 'no ':3}  {finding.facility:{width}}  {finding.meaning}" for finding in found]
    engine = "perf" if found[0].had else "signal"
    return [*lines, f"engine auto takes {engine}"]


def _opened() -> perf_open.Opened:
    return perf_open.open_events([os.getpid()], INTERVAL_ON_NS, on_exec=False, follow=False)


def _perf_events() -> Finding:
    try:
        opened = _opened()
    except EngineRefused as err:
        return Finding("perf events", False, str(err))
    opened.rings.close()
    return Finding("perf events", True, f"CPU time and call stacks (perf_event_paranoid is {_paranoid()})")


def _kernel_mode(allowed: bool) -> Finding:
    kernel = False
    if allowed:
        opened = _opened()
        opened.rings.close()
        kernel = opened.kernel
    if kernel:
        return Finding("kernel mode", True, "system and trap CPU time; where threads wait, with their stacks")
    return Finding("kernel mode", False, "no system time by stack, no stacks of waiting threads: run as root, or "
                                         "sysctl kernel.perf_event_paranoid=1")


def _kernel_symbols() -> Finding:
    if KernelCode().known:
        return Finding("kernel symbols", True, "trap CPU time, user locks, page faults and stops are told apart")
    return Finding("kernel symbols", False, "locks, page faults and stops count as sleep: run as root, or "
                                            "sysctl kernel.kptr_restrict=0 with the capability cap_syslog")


def _tracepoints() -> Finding:
    if perf.tracepoint_number("task", "task_newtask") is not None:
        return Finding("tracepoints", True, "fork, clone and posix_spawn are told apart; the moment of each wake-up")
    return Finding("tracepoints", False, "every new process is named f, wake-ups are known by their sum: run as root")


def _locked_memory() -> Finding:
    kib = proc.parameter("kernel/perf_event_mlock_kb") or 0
    if os.geteuid() == 0 or _paranoid() == -1:
        return Finding("locked memory", True, "rings as large as they should be")
    return Finding("locked memory", kib >= 1 << 15, f"{kib} KiB of rings per CPU: short rings lose samples on a busy "
                                                    "machine: sysctl kernel.perf_event_mlock_kb=65536")


def _ptrace() -> Finding:
    scope = proc.parameter("kernel/yama/ptrace_scope")
    if scope in (None, 0) or os.geteuid() == 0:
        return Finding("ptrace", True, "attaching to processes of this user (-P) with the signal engine")
    return Finding("ptrace", False, f"only own children can be traced (yama/ptrace_scope is {scope}): "
                                    "sysctl kernel.yama.ptrace_scope=0")


def _paranoid() -> int | None:
    return proc.parameter("kernel/perf_event_paranoid")

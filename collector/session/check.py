"""What this user may record on this machine, found out by trying: ``collect --check``.

``probe`` tries and reads; ``table`` is pure: from what was found, what is had, what is lost, and the one command that
would give more.

    perf_event_paranoid   an ordinary user may        what refuses   errno of perf_event_open
     3 (Debian), 4        nothing                    the level       EACCES
     2                    see user mode              seccomp         EPERM in most containers; what it likes
     1, 0                 see the kernel, too        the kernel      ENOSYS, ENOENT: it has no such events
    -1                    lock any memory
"""

from __future__ import annotations

import errno
import os
import pwd
from collections.abc import Sequence
from dataclasses import dataclass

from collector import __version__
from collector.clock import INTERVAL_ON_NS, NS_PER_S
from collector.engines.perf import opening as perf_opening
from collector.engines.perf.kernel_code import KernelCode
from collector.errors import EngineRefused
from collector.linux import own_proc, perf, proc, ptrace
from collector.session.launch import HeldChild, inherited, keep_children

# Bits of capabilities(7).
IPC_LOCK, SYS_PTRACE, SYS_ADMIN, SYSLOG, PERFMON = 14, 19, 21, 34, 38
_NAMES = {IPC_LOCK: "ipc_lock", SYS_PTRACE: "sys_ptrace", SYS_ADMIN: "sys_admin", SYSLOG: "syslog", PERFMON: "perfmon"}
_LEVEL_OF_USERS = 2  # of perf_event_paranoid, the highest at which they get anything
_LOOKS_NEED_ROOT = 2  # of yama/ptrace_scope: below it a parent may look where its children wait
_ENOUGH_S = 0.5  # of samples that a ring has to hold: the collector comes as often

_MISSING = (errno.ENOSYS, errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL)

YES, PART, NO = "yes", "part", "no"

LOWER_LEVEL = perf_opening.LOWER_LEVEL
SHOW_ADDRESSES = "sudo sysctl kernel.kptr_restrict=0"
LOCK_MORE = "sudo sysctl kernel.perf_event_mlock_kb=65536"
LET_TRACE = "sudo sysctl kernel.yama.ptrace_scope=0"
ALLOW_IN_CONTAINER = "docker run --cap-add=PERFMON --cap-add=SYSLOG --cap-add=SYS_PTRACE ..."
ALLOW_ALL_IN_CONTAINER = "docker run --privileged ..."
BE_ROOT = "sudo collect ..."


@dataclass(frozen=True)
class Probe:
    """What was found: settings of the kernel (None: it has no such), and what was tried.

    ``perf`` and ``seize`` are the errno of opening events and of tracing a child, 0 where it went well; ``ring_s`` is
    for how long the rings hold samples at -p on.
    """

    user: str
    uid: int
    release: str
    n_cpus: int
    paranoid: int | None
    kptr_restrict: int | None
    ptrace_scope: int | None
    capabilities: frozenset[int]
    filtered: bool
    perf: int
    kernel: bool
    symbols: bool
    tracepoints: bool
    ring_s: float
    seize: int

    @property
    def engine(self) -> str:
        """The engine that auto takes; empty where none works."""
        return "perf" if not self.perf else "signal" if not self.seize else ""

    @property
    def all_powers(self) -> str:
        """The command that gives what only root has; empty for who has it."""
        return BE_ROOT if self.uid else "" if SYS_ADMIN in self.capabilities else ALLOW_ALL_IN_CONTAINER


@dataclass(frozen=True)
class Row:
    """One line: something to be recorded, how much of it is had, what that means, and the command that gives more."""

    what: str
    had: str
    meaning: str
    more: str = ""


def probe() -> Probe:
    """Tries out everything. Opens events on this very process, traces a child of its own, and leaves nothing behind."""
    own_proc.check()
    keep_children()
    opened, refusal = None, 0
    try:
        opened = perf_opening.open_events([os.getpid()], INTERVAL_ON_NS, on_exec=False, follow=True)
    except EngineRefused as err:
        refusal = getattr(err.__cause__, "errno", None) or errno.EPERM
    ring_s = 0.0
    if opened is not None:
        ring_bytes = min(ring.data_bytes for ring in opened.rings.rings if ring.name == "clock")
        ring_s = ring_bytes / (opened.stack_bytes + 512) * INTERVAL_ON_NS / NS_PER_S
        opened.close()
    status = proc.status(os.getpid())
    effective = int(status.get(b"CapEff", b"0"), 16)
    return Probe(
        user=_user_name(), uid=os.geteuid(), release=os.uname().release, n_cpus=os.sysconf("SC_NPROCESSORS_ONLN"),
        paranoid=proc.parameter("kernel/perf_event_paranoid"), kptr_restrict=proc.parameter("kernel/kptr_restrict"),
        ptrace_scope=proc.parameter("kernel/yama/ptrace_scope"),
        capabilities=frozenset(bit for bit in _NAMES if effective >> bit & 1), filtered=status.get(b"Seccomp") == b"2",
        perf=refusal, kernel=opened is not None and opened.kernel, symbols=KernelCode().known,
        tracepoints=perf.thread_tracepoint_number("task", "task_newtask") is not None, ring_s=ring_s,
        seize=_try_to_seize())


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"uid {os.geteuid()}"


def _try_to_seize() -> int:
    """Has a child traced for a moment by another one, as the signal engine does: 0, or the errno of why not."""
    child = HeldChild("", (), inherited())
    child.make()
    child.await_traceable()
    tracer = os.fork()
    if tracer == 0:
        code = errno.EPERM
        try:
            ptrace.seize(child.pid, 0)
            code = 0
        except OSError as err:
            code = err.errno or code
        finally:
            os._exit(code)
    refusal = os.waitstatus_to_exitcode(os.waitpid(tracer, 0)[1])
    child.abandon()
    return refusal


# -- the table


def table(found: Probe) -> list[str]:
    """What is had and what is lost in lines, and below them the commands that give more, the best one first."""
    rows = _ROWS[found.engine](found)
    commands = _by_gain(rows)
    width = max(len(row.what) for row in rows)
    lines = [*_head(found), ""]
    for row in rows:
        mark = f"  ({commands.index(row.more) + 1})" if row.more else ""
        lines.append(f"{row.had:4}  {row.what:{width}}  {row.meaning}{mark}")
    if commands:
        lines += ["", "for more:", *(f"  ({i}) {command}" for i, command in enumerate(commands, 1))]
    if any("sysctl" in command for command in commands):
        lines.append("what sysctl sets holds until the next boot; a line in /etc/sysctl.d/ makes it last")
    return lines


def _by_gain(rows: Sequence[Row]) -> list[str]:
    """The commands in the order of the rows that want them; those that give every power come last."""
    commands = dict.fromkeys(row.more for row in rows if row.more)
    return sorted(commands, key=lambda command: command in (BE_ROOT, ALLOW_ALL_IN_CONTAINER))


def _head(found: Probe) -> list[str]:
    settings = [("perf_event_paranoid", found.paranoid), ("kptr_restrict", found.kptr_restrict),
                ("yama/ptrace_scope", found.ptrace_scope)]
    known = ", ".join(f"{name} {value}" for name, value in settings if value is not None)
    names = ", ".join(_NAMES[bit] for bit in sorted(found.capabilities)) or "none"
    names = "all" if found.capabilities >= _NAMES.keys() else names
    return [f"collect {__version__} on Linux {found.release}, {found.n_cpus} CPUs, as {found.user}",
            f"{known}; capabilities: {names}{'; under a seccomp filter' if found.filtered else ''}",
            {"perf": "engine perf: the kernel takes the samples, nothing is ever stopped",
             "signal": f"engine signal, since perf events are refused: {_why_no_perf(found)}",
             "": f"no engine: perf events are refused ({_why_no_perf(found)}), and so is tracing"}[found.engine]]


def _forbidden_by_level(found: Probe) -> bool:
    return found.perf == errno.EACCES and (found.paranoid or 0) > _LEVEL_OF_USERS


def _why_no_perf(found: Probe) -> str:
    if _forbidden_by_level(found):
        return f"perf_event_paranoid is {found.paranoid}"
    if found.filtered:
        return "by a seccomp filter, as in most containers"
    return "this kernel has none" if found.perf in _MISSING else "by a security module, or for want of memory to lock"


def _what_lets_perf(found: Probe) -> str:
    """The command that most likely gives perf events."""
    if _forbidden_by_level(found):
        return LOWER_LEVEL
    return ALLOW_IN_CONTAINER if found.filtered else "" if found.perf in _MISSING else found.all_powers


def _with_perf(found: Probe) -> list[Row]:
    kernel, told = found.kernel, found.kernel and found.symbols
    addresses = SHOW_ADDRESSES if found.kptr_restrict else LOWER_LEVEL
    looks = (found.ptrace_scope or 0) < _LOOKS_NEED_ROOT
    return [
        Row("CPU time", YES, "exact for every thread, with stacks in user mode"),
        Row("system and trap time", YES, "told from user time") if told else
        Row("system and trap time", PART, "told from user time, but not from each other", addresses) if kernel else
        Row("system and trap time", NO, "counts as user time", LOWER_LEVEL),
        Row("waiting", YES, "how long and where, with stacks") if kernel else
        Row("waiting", PART, "how long, exactly; where, with stacks, by a look about once a second", LOWER_LEVEL)
        if looks else
        Row("waiting", PART, "how long, exactly; but not where and for what", LOWER_LEVEL),
        Row("locks, page faults, stops", YES, "told from sleep") if told else
        Row("locks, page faults, stops", NO, "count as sleep", addresses) if kernel else
        Row("locks, page faults, stops", PART, "told from sleep by a look about once a second", LOWER_LEVEL)
        if looks else
        Row("locks, page faults, stops", NO, "count as sleep", LOWER_LEVEL),
        Row("wake-ups", YES, "each at its moment: from then on a thread waits for a CPU") if found.tracepoints else
        Row("wake-ups", PART, "how long threads waited for a CPU is told by the kernel's sum", found.all_powers),
        Row("descendants", YES, "fork, exec, spawn and clone are told apart") if found.tracepoints else
        Row("descendants", PART, "all are recorded; fork, spawn and clone are not told apart", found.all_powers),
        Row("rings", YES, f"hold {found.ring_s:.1f} s of samples at -p on") if found.ring_s >= _ENOUGH_S else
        Row("rings", PART, f"hold {found.ring_s:.1f} s of samples at -p on; what is lost is counted", LOCK_MORE),
        _attaching(found)]


def _with_signals(found: Probe) -> list[Row]:
    more = _what_lets_perf(found)
    return [
        Row("CPU time", PART, "within a few per cent; a running thread is stopped for 0.1 ms a sample", more),
        Row("system and trap time", PART, "told from user time, but hardly from each other", more),
        Row("waiting", YES, "how long and where, with stacks"),
        Row("locks, page faults, stops", YES, "told from sleep"),
        Row("wake-ups", PART, "how long threads waited for a CPU is told by the kernel's sum", more),
        Row("descendants", YES, "fork, exec, spawn and clone are told apart"),
        _attaching(found)]


def _with_nothing(found: Probe) -> list[Row]:
    more = _what_lets_perf(found)
    return [Row("CPU time, waiting", NO, "only overview samples of the whole process (-p off)", more),
            Row("tracing", NO, "would do without perf events", LET_TRACE if (found.ptrace_scope or 0) > 1 else more)]


def _attaching(found: Probe) -> Row:
    """-P needs what ptrace(2) needs, perf a little less."""
    if SYS_PTRACE in found.capabilities and found.ptrace_scope != 3:
        return Row("attaching (-P)", YES, "to processes of every user")
    if not found.ptrace_scope:
        return Row("attaching (-P)", PART, "to processes of this user", BE_ROOT if found.uid else ALLOW_IN_CONTAINER)
    if found.engine == "perf":
        return Row("attaching (-P)", PART, "to processes of this user; no stacks of threads that sleep when we come",
                   LET_TRACE)
    return Row("attaching (-P)", NO, "nobody but a parent may trace", LET_TRACE)


_ROWS = {"perf": _with_perf, "signal": _with_signals, "": _with_nothing}

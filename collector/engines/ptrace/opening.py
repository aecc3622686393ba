"""Starting the signal engine's tracer, before the target's exec. Standard library only: the target waits for this."""

from __future__ import annotations

import errno
import gc
import marshal
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from collector.clock import NS_PER_MS, NS_PER_S
from collector.engines.ptrace.channel import END, HOLD, RUN, STOP, Channel
from collector.errors import CollectorError, EngineRefused, TargetGone, reason
from collector.linux import abi, libc, tasks
from collector.linux.crowd import lead_session
from collector.linux.descriptors import close_all_but, redirect_to_null

if TYPE_CHECKING:  # the target of the other engine need not wait for it
    from collector.engines.ptrace.tracer import Tracer

_STACK_WORDS = 1 << 22  # of copies between two drains
_WAKE, _BEGUN, _STOPPED, _ATTACHED, _REFUSED = b"w", b"b", b"s", b"+", b"-"
_NOTHING_MORE = b"\0"  # never said: its end of the pipe is closed
_ANSWER_NS = 5 * NS_PER_S
_RETRY_S = 0.001  # until it is asked again for what waits in it
_SLICE_NS = 100_000  # the shortest there is


@dataclass
class Opened:
    """A tracer at work: its pid, the memory shared with it, the pipe that it speaks through, and why there is one."""

    pid: int
    channel: Channel
    pipe: int
    interval_ns: int
    reason: str
    silent: bool = False  # it was told to stop and has not answered

    def take_wakes(self) -> None:
        """Empties the pipe of what it was woken with."""
        with suppress(BlockingIOError):
            os.read(self.pipe, 4096)

    def begin(self) -> None:
        """Lets a tracer that has attached to running processes begin to look at them."""
        self.channel.command = RUN
        self._wait_for(_BEGUN)

    def stop(self) -> None:
        """Lets the tracer tell everything up to now, and take no more samples."""
        self.channel.command = STOP
        self.silent = not self._wait_for(_STOPPED)

    def await_rows(self, n_rounds: int) -> bool:
        """Until more has been told than in so many rounds, after a stop; False where nothing more will come."""
        until_ns = time.monotonic_ns() + _ANSWER_NS
        while self.channel.is_behind and self.channel.n_rounds == n_rounds:
            if not self.pid or self._has_hung_up():
                return False
            if time.monotonic_ns() > until_ns:
                self.silent = True
                return False
            self._call()
            time.sleep(_RETRY_S)
        return True

    def failure(self) -> str:
        """How the tracer ended, if it did and should not have, or that it did not answer when it was to stop."""
        if self.silent:
            return "the tracer does not answer"
        if not self.pid or not self._has_hung_up():
            return ""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.pid = 0
        how = f"was killed by signal {-code}" if code < 0 else f"failed with status {code}"
        return f"the tracer {how}" if code else ""

    def _has_hung_up(self) -> bool:
        poller = select.poll()
        poller.register(self.pipe, 0)
        return bool(poller.poll(0))

    def _wait_for(self, word: bytes) -> bool:
        """Until the tracer has done what it was told, or is gone; False if that takes too long."""
        self._call()
        until_ns = time.monotonic_ns() + _ANSWER_NS
        poller = select.poll()
        poller.register(self.pipe, select.POLLIN)
        while poller.poll(max(until_ns - time.monotonic_ns(), 0) / NS_PER_MS):
            said = os.read(self.pipe, 4096)
            if not said or word in said:
                return True
        return False

    def close(self) -> None:
        """Ends the tracer; its threads run on untraced."""
        if self.pid:
            self.channel.command = END
            if not self.silent:
                self._wait_for(_NOTHING_MORE)
            os.kill(self.pid, signal.SIGKILL)  # it has ended, or does not answer (somebody stopped it)
            with suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
            self.pid = 0
        if self.pipe >= 0:
            os.close(self.pipe)
            self.pipe = -1

    def _call(self) -> None:
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGUSR1)


def stack_bytes_for(interval_ns: int) -> int:
    """How much of each stack is copied: generous where samples are rare."""
    return 32 << 10 if interval_ns >= 5 * NS_PER_MS else 16 << 10


def open_held(pid: int, interval_ns: int, *, follow: bool, reason: str) -> Opened:
    """A tracer for a child that is held before its exec. Raises EngineRefused."""
    return _open(interval_ns, follow, lambda tracer: tracer.hold(pid), [pid], reason, RUN)


def open_attached(pids: list[int], interval_ns: int, *, follow: bool, reason: str) -> Opened:
    """A tracer for all threads of running processes; it waits for ``begin``. Raises EngineRefused, or TargetGone."""

    def attach(tracer: Tracer) -> None:
        for pid in pids:
            tracer.attach(pid)

    return _open(interval_ns, follow, attach, pids, reason, HOLD)


def _open(interval_ns: int, follow: bool, attach: Callable[[Tracer], None], pids: list[int],
          reason: str, command: int) -> Opened:
    channel = Channel(_STACK_WORDS)
    channel.command = command
    read, write = os.pipe()
    collector = os.getpid()
    tracer_pid = os.fork()
    if tracer_pid == 0:
        _become_tracer(channel, interval_ns, follow, attach, write, collector)
    os.close(write)
    opened = Opened(tracer_pid, channel, read, interval_ns, reason)
    said = _first_word(read)
    if said == _ATTACHED:
        os.set_blocking(read, False)
        return opened
    opened.close()
    raise _refusal(said, pids)


def _first_word(pipe: int) -> bytes:
    said = os.read(pipe, 1)
    while said == _WAKE:
        said = os.read(pipe, 1)
    return said if said in (b"", _ATTACHED) else said + os.read(pipe, 4096)


def _refusal(said: bytes, pids: list[int]) -> CollectorError:
    code = marshal.loads(said[1:]) if said[:1] == _REFUSED else 0
    which = f"process {pids[0]}" if len(pids) == 1 else "one of the processes"
    if code in (errno.ESRCH, errno.ENOENT):
        return TargetGone(f"{which} does not exist (any more)")
    if code in (errno.EPERM, errno.EACCES):
        return _forbidden(which, pids)
    if code in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        return EngineRefused(reason(OSError(code, os.strerror(code))))
    return EngineRefused(f"{which} cannot be traced: {os.strerror(code) if code else 'the tracer has died'}")


def _forbidden(which: str, pids: list[int]) -> EngineRefused:
    """That the kernel does not let us trace ``pids``: because others do, or for want of privileges."""
    for pid, tid in [(each, tid) for each in pids for tid in _threads(each)]:
        if other := tasks.tracer_of(tid):
            return EngineRefused(f"process {pid} is being traced already, by process {other} (a debugger or strace?): "
                                 "only one can; end that one, or take --engine perf, which does not mind")
    from collector.linux import proc

    scope = proc.parameter("kernel/yama/ptrace_scope")
    yama = f"kernel.yama.ptrace_scope is {scope} (sudo sysctl kernel.yama.ptrace_scope=0 lets users); " if scope else ""
    advice = "run as root, or as the user of the process; " if os.geteuid() else ""
    return EngineRefused(f"the kernel does not let this user trace {which}: {yama}{advice}in a container it takes the "
                         "capability CAP_SYS_PTRACE")


def _threads(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    return []


def _become_tracer(channel: Channel, interval_ns: int, follow: bool, attach: Callable[[Tracer], None], pipe: int,
                   collector: int) -> NoReturn:
    """The tracer's side; never returns. It has a session of its own: what the terminal sends is for others."""
    status = 1

    def say(word: bytes) -> None:
        with suppress(OSError):
            os.write(pipe, word)

    try:
        try:
            tracer = _tracer(channel, interval_ns, follow, pipe, collector, lambda: say(_WAKE))
            attach(tracer)
        except (OSError, MemoryError) as err:
            code = errno.ENOMEM if isinstance(err, MemoryError) else err.errno
            say(_REFUSED + marshal.dumps(code or errno.EINVAL))
            raise
        say(_ATTACHED)
        tracer.run(lambda: say(_BEGUN), lambda: say(_STOPPED))
        status = 0
    finally:
        os._exit(status)


def _tracer(channel: Channel, interval_ns: int, follow: bool, pipe: int, collector: int,
            wake: Callable[[], None]) -> Tracer:
    """A tracer in this process, which becomes nothing else. Raises OSError."""
    _live_and_die_with(collector)
    close_all_but({pipe})
    redirect_to_null((0, 1) if os.environ.get("COLLECT_TRACER_STDERR") else (0, 1, 2))
    _be_prompt()
    signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGCHLD, signal.SIGUSR1})
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    os.set_blocking(pipe, False)
    gc.disable()  # nothing here has cycles

    from collector.engines.ptrace.tracer import Tracer

    return Tracer(channel, interval_ns, stack_bytes_for(interval_ns), follow, wake)


def _live_and_die_with(collector: int) -> None:
    lead_session()
    libc.prctl(abi.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != collector:
        os._exit(1)


def _be_prompt() -> None:
    """Asks for short slices, which come sooner: a late look would find threads not where the clock stopped them but
    where the scheduler did."""
    libc.prctl(abi.PR_SET_TIMERSLACK, 1)
    with suppress(OSError):
        libc.sched_setattr(abi.SCHED_ATTR.pack(abi.SCHED_ATTR.size, 0, 0, os.getpriority(os.PRIO_PROCESS, 0), 0,
                                               _SLICE_NS, 0, 0))

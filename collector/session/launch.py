"""A child process held before its exec, so that the events are open when its first instruction runs.

Standard library only, and as little as possible of it: the target waits for this.

    parent                        child
    fork  ----------------------> let us trace it, say so; restore signals, all blocked; wait for the go
    open the events on the child
    go    ----------------------> unblock signals, execve; close-on-exec closes the report pipe
    report pipe: a line when it may be traced; its account, just before execve; end of file = the program runs;
                 otherwise errno of execve

Events that are to outlive the child are opened on the thread that makes it, before it does, and inherited.
"""

from __future__ import annotations

import _thread  # what threading is made of, which is too much to import for this
import errno
import os
import resource
import select
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from collector import environment
from collector.errors import NO_TASKS, CollectorError, ProgramNotExecutable, ProgramNotFound, reason
from collector.linux import abi, libc
from collector.linux.accounts import Account, own_account

Signals: TypeAlias = Iterable[int]

# Signals that we handle while the target runs.
_KEYS = (signal.SIGINT, signal.SIGQUIT)
HANDLED = (*_KEYS, signal.SIGTERM, signal.SIGHUP)
# What would end us, and programs send to their process groups.
_OF_GROUPS = {signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO,
              signal.SIGPWR, *range(signal.SIGRTMIN, signal.SIGRTMAX + 1)}
_SI_KERNEL = 0x80  # siginfo_t.si_code


class Inherited(NamedTuple):
    """What a target must find though we change it for ourselves."""

    dispositions: Mapping[int, signal.Handlers]  # of signals
    blocked: Signals
    descriptors: tuple[int, int]  # RLIMIT_NOFILE, soft and hard
    variables: Mapping[bytes, bytes | None]  # of the environment; None: it is not there


def inherited() -> Inherited:
    """What targets are to have, as long as we have not changed it."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    return Inherited(_dispositions(), blocked, resource.getrlimit(resource.RLIMIT_NOFILE), environment.changed())


def _dispositions() -> dict[int, signal.Handlers]:
    """Ignored signals stay ignored (nohup), all others are as at birth.

    Python ignores SIGPIPE and SIGXFSZ when it starts; a program expects their defaults. SIGCHLD we change ourselves,
    see ``keep_children``.
    """
    found: dict[int, signal.Handlers] = {signal.SIGPIPE: signal.SIG_DFL, signal.SIGXFSZ: signal.SIG_DFL}
    for number in (*HANDLED, signal.SIGCHLD):
        ignored = signal.getsignal(number) is signal.SIG_IGN
        found[number] = signal.SIG_IGN if ignored else signal.SIG_DFL
    return found


def keep_children() -> None:
    """Children of ours stay until we have waited for them: where SIGCHLD is ignored, as our caller may do, the kernel
    takes them as they end, with their status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def outlive_group() -> None:
    """The child is made: what it sends to its process group, where we are and who helps us, is not for us."""
    for number in _OF_GROUPS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.SIG_IGN)


class Maker:
    """A thread of ours that forks when it is told to, and otherwise sleeps until we end.

    A child inherits the events of the thread that made it. Those of this one stay as they were opened: it never runs
    a program, so that none of them starts here which waits for an exec, and it does not end before we do.
    """

    def __init__(self) -> None:
        """Raises RuntimeError where there can be no more threads."""
        self.tid = 0
        self._work: Callable[[], None] = lambda: None
        self._pid = 0
        self._failure: BaseException | None = None
        self._asked, self._done = _thread.allocate_lock(), _thread.allocate_lock()
        self._asked.acquire()
        self._done.acquire()
        _thread.start_new_thread(self._live, ())
        self._done.acquire()

    def fork(self, work: Callable[[], None]) -> int:
        """A child's pid, in which ``work`` is done, which must not return; all signals are blocked. Raises OSError."""
        self._work = work
        self._asked.release()
        self._done.acquire()
        if self._failure is not None:
            raise self._failure
        return self._pid

    def _live(self) -> None:
        # Our signals are for the thread that handles them.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self.tid = _thread.get_native_id()
        self._done.release()
        while True:
            self._asked.acquire()
            self._failure = None
            try:
                self._pid = os.fork()
            except BaseException as err:
                self._failure = err
            if self._pid == 0 and self._failure is None:
                self._work()
            self._done.release()


class HandedOn:
    """SIGTERM and SIGHUP for us are meant for the job: they are handed on to it when it is released. Not those that it
    has itself, being in our process group: what it sent to that, and what the kernel did, whose terminal has hung up.
    Keys of the terminal (SIGINT, SIGQUIT) reach it, too. When it has ended, or is another user's, all of them are for
    what goes on without it.

    They are blocked, and a thread of ours waits for them: no handler is told who has sent what.
    """

    def __init__(self) -> None:
        """From now on, but for keys. Raises CollectorError."""
        self._pid, self._job = 0, -1  # its pidfd
        self._stop: Callable[[], None] = lambda: None
        self._is_released = _thread.allocate_lock()
        self._is_released.acquire()
        self._taken = _blocked(signal.SIGTERM, signal.SIGHUP)
        for number in self._taken:
            signal.signal(number, self._hand_on)  # where they are let in for a while
        # Our other signals are for the thread that handles them, from this one's first moment on.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            _thread.start_new_thread(self._live, ())
        except RuntimeError:
            raise CollectorError(NO_TASKS) from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def take_keys(self) -> None:
        """From now on keys, too. To be called before it is released."""
        self._taken |= _blocked(*_KEYS)

    def hold(self, pid: int) -> None:
        """The job is a child of ours. Raises OSError."""
        self._pid, self._job = pid, os.pidfd_open(pid)

    def release(self, stop: Callable[[], None]) -> None:
        """It runs; ``stop`` ends what goes on without it."""
        self._stop = stop
        self._is_released.release()

    def _live(self) -> None:
        self._is_released.acquire()
        while True:
            told = signal.sigwaitinfo(self._taken)
            if told.si_signo in _KEYS:
                if self._is_reaped():  # not only ended, perhaps by this one
                    self._stop()
            elif not self._has_got(told):
                self._hand_on(told.si_signo)

    def _has_got(self, told: signal.struct_siginfo) -> bool:
        try:
            if self._is_reaped() or os.getpgid(self._pid) != os.getpgrp():
                return False
        except ProcessLookupError:  # it is being waited for
            return False
        if told.si_code == _SI_KERNEL:  # at first to the leader of the session alone
            return os.getsid(0) != os.getpid()
        return descends(told.si_pid, self._pid)

    def _is_reaped(self) -> bool:
        """Whether it has been waited for; its number may be another's then."""
        try:
            signal.pidfd_send_signal(self._job, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return False

    def _hand_on(self, number: int, _frame: object = None) -> None:
        if _has_ended(self._job):
            self._stop()
        else:
            try:
                signal.pidfd_send_signal(self._job, number)
            except ProcessLookupError:
                pass
            except PermissionError:  # sudo and the like: it goes on, unrecorded
                self._stop()


def _blocked(*numbers: int) -> set[int]:
    """Blocks those that are not ignored, which they are."""
    taken = {number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN}
    signal.pthread_sigmask(signal.SIG_BLOCK, taken)
    return taken


def descends(pid: int, ancestor: int) -> bool:
    """Whether a process is another one, or descends from it by processes that live."""
    with suppress(OSError):
        while pid not in (0, ancestor):
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
    return pid == ancestor


def _has_ended(pidfd: int) -> bool:
    ended = select.poll()
    ended.register(pidfd, select.POLLIN)
    return bool(ended.poll(0))


class HeldChild:
    """A forked child that runs ``arguments`` as soon as it is let go. It has yet to be made."""

    pid = 0

    def __init__(self, path: str, arguments: Sequence[str], inherited: Inherited) -> None:
        """``path`` is what is executed."""
        self._path = path
        self._arguments = arguments
        self._inherited = inherited
        self._maker: Maker | None = None

    @property
    def maker_tid(self) -> int:
        """The thread that will make it, and then sleep as long as we live. Raises CollectorError."""
        if self._maker is None:
            try:
                self._maker = Maker()
            except RuntimeError:
                raise CollectorError(NO_TASKS) from None
        return self._maker.tid

    def make(self) -> int:
        """Makes it, if need be again, and returns its pid: by the thread of ``maker_tid`` if there is one. Raises
        CollectorError."""
        self.abandon()
        self._go_read, self._go_write = os.pipe()
        self._report_read, self._report_write = os.pipe()
        try:
            self.pid = self._maker.fork(self._become) if self._maker is not None else self._fork()
        except BlockingIOError:
            raise CollectorError(NO_TASKS) from None
        except OSError as err:
            raise CollectorError(f"no process can be made: {reason(err)}") from err
        os.close(self._go_read)
        os.close(self._report_write)
        return self.pid

    def await_traceable(self) -> None:
        """Until it may be traced by us, and by what we have forked."""
        os.read(self._report_read, 1)

    def _fork(self) -> int:
        """The same without the maker."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                self._become()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return pid

    def _become(self) -> None:
        """The child's side; never returns. A signal that is sent to the job while the child is held ends it when it is
        let go, like a program that has just begun."""
        code = 0
        try:
            os.close(self._go_write)
            _let_trace(os.getppid())
            os.write(self._report_write, b"\n")
            for number, disposition in self._inherited.dispositions.items():
                signal.signal(number, disposition)
            with suppress(OSError, ValueError):  # what nobody may change is what it was
                resource.setrlimit(resource.RLIMIT_NOFILE, self._inherited.descriptors)
            for name, value in self._inherited.variables.items():
                if value is None:
                    os.environb.pop(name, None)
                else:
                    os.environb[name] = value
            if os.read(self._go_read, 1):
                _let_trace(0)
                signal.pthread_sigmask(signal.SIG_SETMASK, self._inherited.blocked)
                self._report_account()
                os.execv(self._path, list(self._arguments))
        except OSError as err:
            code = err.errno or errno.EINVAL
        except BaseException:
            code = errno.EINVAL
        try:
            if code:
                os.write(self._report_write, str(code).encode())
        finally:
            os._exit(127)

    def _report_account(self) -> None:
        """What the child has used so far, which is none of the program's."""
        with suppress(OSError, ValueError):  # the kernel keeps no accounts
            os.write(self._report_write, b"%d %d %d %d\n" % own_account())

    def release(self) -> Account | None:
        """Lets the child exec; its account just before that, if the kernel keeps any. Raises ProgramNotFound or
        ProgramNotExecutable when the kernel will not run it."""
        os.write(self._go_write, b"g")
        os.close(self._go_write)
        report = b"".join(iter(lambda: os.read(self._report_read, 256), b""))
        os.close(self._report_read)
        account, _, code = report.lstrip(b"\n").rpartition(b"\n")
        if code:
            os.waitpid(self.pid, 0)
            raise exec_error(self._path, int(code))
        return Account(*map(int, account.split())) if account else None

    def abandon(self) -> None:
        """Ends the child, if there is one, without an exec."""
        if not self.pid:
            return
        os.close(self._go_write)  # end of file: the child leaves by itself
        os.close(self._report_read)
        os.waitpid(self.pid, 0)
        self.pid = 0


def _let_trace(pid: int) -> None:
    """Lets a process, and what descends from it, trace us; 0: nobody by that. Where Yama's ptrace_scope is 1 an
    ancestor alone may do so else, and the tracer is our sibling."""
    with suppress(OSError):  # there is no Yama
        libc.prctl(abi.PR_SET_PTRACER, pid)


def runtimes_of(program: str) -> frozenset[str]:
    """By which of "python", "node", "java" a program is run, that it is or whose script it is, so that memory is to be
    read while it runs. None where it cannot be told."""
    try:
        path = os.path.realpath(find_program(program))
        with open(path, "rb") as file:
            head = file.read(128)
    except (CollectorError, OSError):
        return frozenset()
    name, first = os.path.basename(path), head.split(b"\n")[0] if head.startswith(b"#!") else b""
    found = {one for one in ("python", "node") if name.startswith(one) or one.encode() in first}
    return frozenset(found | ({"java"} & {name}))


def find_program(name: str) -> str:
    """The file that execvp(3) would run for ``name``. Raises ProgramNotFound or ProgramNotExecutable."""
    if "/" in name:
        candidates = [name]
    else:
        candidates = [os.path.join(d or ".", name) for d in os.environ.get("PATH", os.defpath).split(os.pathsep)]
    denied = None
    for path in candidates:
        if os.path.isfile(path):
            if os.access(path, os.X_OK):
                return path
            denied = denied or path
        elif os.path.exists(path) and "/" in name:
            denied = denied or path
    if denied is not None:
        raise exec_error(denied, errno.EACCES)
    raise exec_error(name, errno.ENOENT)


def exec_error(program: str, code: int) -> ProgramNotFound | ProgramNotExecutable:
    """The error for the user when the program cannot be run for the reason ``code``."""
    if code in (errno.ENOENT, errno.ENOTDIR):
        if os.path.exists(program):
            return ProgramNotFound(f"{program!r}: its interpreter (first line, or dynamic loader) does not exist")
        return ProgramNotFound(f"{program!r}: program not found; give its path, or check PATH")
    if code == errno.ENOEXEC:
        return ProgramNotExecutable(f"{program!r}: not a program for this machine, nor a script with a #! line")
    return ProgramNotExecutable(f"{program!r}: cannot be executed: {os.strerror(code)}")


def exit_status(wait_status: int) -> int:
    """A wait(2) status as the shell gives it: the exit code, or 128 plus the signal."""
    code = os.waitstatus_to_exitcode(wait_status)
    return 128 - code if code < 0 else code

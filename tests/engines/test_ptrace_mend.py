"""Calls of a program that signals reach as well as the tracer: it must see what it sees without us."""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from pathlib import Path

import pytest
from traced import Traced, running

from collector.clock import NS_PER_S
from collector.linux import abi, accounts, ptrace

# Reads until a signal comes, which has a handler; and tells how much of what it asked for that call has read.
READS = """
import signal, sys
signals = []
signal.signal(signal.SIGUSR1, lambda number, _: signals.append(number))
memory = bytearray(int(sys.argv[1]))
with open("/dev/urandom", "rb", buffering=0) as file:
    print(flush=True)
    sys.stdin.readline()
    while not signals:
        n_read = file.readinto(memory)
    print(n_read, flush=True)
sys.stdin.readline()
"""

# Tells what a wait for a line comes to, without a time limit or with one; and its errno.
WAITS = """
import ctypes, select, signal, sys
for number in map(int, sys.argv[2:]):
    signal.signal(number, lambda *_: None)
libc = ctypes.CDLL(None, use_errno=True)
waiting = select.epoll()
waiting.register(0, select.EPOLLIN)
print(flush=True)
print(libc.epoll_wait(waiting.fileno(), ctypes.create_string_buffer(12), 1, int(sys.argv[1])), ctypes.get_errno())
"""

# Writes more than a pipe has room for, and behind that what the call came to.
WRITES = """
import os, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: None)
memory = bytes(range(251)) * int(sys.argv[1])
print(flush=True)
print(os.write(1, memory))
"""

N_BYTES, LIMIT_MS, N_TIMES, N_DIGITS = 64 << 20, 10_000, 4001, 9
READ, WRITE, EPOLL_WAIT = 0, 1, 232
PATIENCE_NS = 5 * NS_PER_S

pytestmark = pytest.mark.usefixtures("attach_allowed")


def _hear_signal(traced: Traced, number: int) -> None:
    """Lets the tracer hear everything up to a signal's own stop."""
    for report in traced.reports():
        traced.tracer.reports.hear(report)
        if report.signal == number and not report.event:
            return


def test_a_call_that_is_mended_goes_on_behind_a_handler() -> None:
    """Which is called as soon as we let the thread go, before it makes its call again."""
    with running(READS, N_BYTES) as traced:
        account = Path(f"/proc/{traced.pid}/schedstat")
        before_ns, _, _ = accounts.parse(account.read_bytes())
        traced.go_on()
        while accounts.parse(account.read_bytes())[0] < before_ns + 10_000_000:
            time.sleep(0.001)
        traced.ask()
        os.kill(traced.pid, signal.SIGUSR1)
        traced.hear_until(abi.EVENT_STOP)
        completion = traced.leader.completion
        assert completion is not None  # it reads on
        _hear_signal(traced, signal.SIGUSR1)
        while not select.select([traced.output], [], [], 0.001)[0]:
            traced.tracer.reports.take()
        n_read = int(traced.output.readline())
        traced.hear_all()
    assert n_read == completion.done == N_BYTES  # and has read nothing twice


def test_a_stop_that_is_asked_for_comes_behind_a_signal_that_took_its_place() -> None:
    """The kernel forgets an interruption at a signal's stop: here it is heard by nobody."""
    with running(READS, 1) as traced:
        _await_call(traced, READ)
        traced.ask()
        stop = next(traced.reports())
        assert stop.event == abi.EVENT_STOP
        ptrace.cont(traced.pid)
        os.kill(traced.pid, signal.SIGUSR1)
        _hear_signal(traced, signal.SIGUSR1)
        until_ns = time.monotonic_ns() + PATIENCE_NS
        while traced.leader.asked and time.monotonic_ns() < until_ns:
            traced.tracer.reports.take()
        has_stopped = traced.leader.asked is None
        traced.hear_all()
    assert has_stopped


def _await_call(traced: Traced, number: int) -> None:
    call = Path(f"/proc/{traced.pid}/syscall")
    while not call.read_text().startswith(f"{number} "):
        time.sleep(0.001)


@pytest.mark.parametrize(("number", "limit_ms", "got"), [
    (signal.SIGWINCH, -1, (1, 0)), (signal.SIGUSR1, -1, (-1, errno.EINTR)),
    (signal.SIGWINCH, LIMIT_MS, (-1, errno.EINTR)), (signal.SIGCONT, -1, (1, 0)), (signal.SIGCONT, LIMIT_MS, (1, 0)),
], ids=["ignored", "with-a-handler", "ignored-with-a-time-limit", "cont", "cont-with-a-time-limit"])
def test_a_wait_ends_at_a_signal_that_has_a_handler(number: int, limit_ms: int, got: tuple[int, int]) -> None:
    """One that is ignored would not even have woken it. (It does where there is a time limit, which must not grow; but
    SIGCONT, which is sent once and reaches all threads, does not.)"""
    with running(WAITS, limit_ms, signal.SIGUSR1.value) as traced:
        _await_call(traced, EPOLL_WAIT)
        os.kill(traced.pid, number)
        _hear_signal(traced, number)
        traced.hear_all()  # with a line for it
        assert tuple(map(int, traced.output.read().split())) == got


@pytest.mark.parametrize(("stops", "handled"), [(False, True), (True, False), (True, True)],
                         ids=["with-a-handler", "stopped", "stopped-with-a-handler"])
def test_a_wait_ends_at_a_cont_that_ends_a_stop_or_has_a_handler(stops: bool, handled: bool) -> None:
    """Without a tracer, too, each of the two ends it."""
    with running(WAITS, -1, *[signal.SIGCONT.value][:handled]) as traced:
        _await_call(traced, EPOLL_WAIT)
        if stops:
            os.kill(traced.pid, signal.SIGSTOP)
            traced.hear_until(abi.EVENT_STOP)
        os.kill(traced.pid, signal.SIGCONT)
        _hear_signal(traced, signal.SIGCONT)
        traced.hear_all()
        assert tuple(map(int, traced.output.read().split())) == (-1, errno.EINTR)


def _all_that_comes(traced: Traced) -> bytes:
    """What a program writes until it ends, of which the tracer hears."""
    got = bytearray()
    while traced.tracer.reports.take():
        if select.select([traced.output], [], [], 0.001)[0]:
            got += traced.output.read(1 << 16)
    traced.hear_all()
    return bytes(got + traced.output.read())


def _told(got: bytes) -> int:
    """How many bytes the program says that it has written before it said so."""
    return next(n for n in range(len(got) - N_DIGITS, len(got)) if got[n:] == b"%d\n" % n)


@pytest.mark.parametrize("asks", [False, True], ids=["", "asked"])
@pytest.mark.parametrize(("numbers", "is_whole"), [
    ((), True), ((signal.SIGWINCH,), True), ((signal.SIGCONT,), True), ((signal.SIGUSR1,), False),
    ((signal.SIGWINCH, signal.SIGUSR1), False), ((signal.SIGSTOP, signal.SIGCONT), False),
], ids=["none", "ignored", "cont", "handled", "ignored-and-handled", "stopped"])
def test_a_write_is_cut_by_what_cuts_it_without_us(asks: bool, numbers: tuple[int, ...], is_whole: bool) -> None:
    """By a signal that has a handler, and by a stop. Whatever comes of it, each byte is written once."""
    wanted = bytes(range(251)) * N_TIMES
    with running(WRITES, N_TIMES) as traced:
        _await_call(traced, WRITE)
        if asks:
            traced.ask()
        for number in numbers:
            os.kill(traced.pid, number)
            if number == signal.SIGSTOP:
                while not traced.leader.in_stop:
                    traced.tracer.reports.take()
        if numbers:
            _hear_signal(traced, numbers[-1])
        elif asks:
            traced.hear_until(abi.EVENT_STOP)
        got = _all_that_comes(traced)
    n_written = _told(got)
    assert got[:n_written] == wanted[:n_written]
    assert (n_written == len(wanted)) == is_whole


def test_a_write_amid_which_the_tracer_leaves_tells_what_it_has_written() -> None:
    """All of it, not what it has written since it was made again for the rest."""
    wanted = bytes(range(251)) * N_TIMES
    with running(WRITES, N_TIMES) as traced:
        _await_call(traced, WRITE)
        traced.ask()
        traced.hear_until(abi.EVENT_STOP)
        traced.hear_until(0)  # it enters the call for the rest
        traced.tracer.reports.end_calls()
        is_over = traced.leader.completion is None
        got = _all_that_comes(traced)
    assert is_over
    n_written = _told(got)
    assert 0 < n_written < len(wanted)

"""ptrace on real threads: what is reported, what registers say, and that the kernel lets go of all when we do."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from collector.linux import abi, libc, ptrace, tasks


def state_of(pid: int) -> str:
    return tasks.parse_stat(Path(f"/proc/{pid}/stat").read_bytes()).state.decode()


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.001)


def next_report(tid: int) -> ptrace.Report:
    """The next report, which must be of this thread."""
    while (report := ptrace.next_report()) is None:
        time.sleep(0.001)
    assert report.tid == tid
    if report.gone:
        ptrace.bury(tid)
    return report


def end(process: subprocess.Popen[bytes]) -> None:
    """Kills a process; traced, it may tell of its exit once more before it is gone.

    Not by Popen, which takes a stop that nobody has asked for yet for an end, and sends nothing then.
    """
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        while True:
            _, status = os.waitpid(process.pid, os.WNOHANG)
            if status and not os.WIFSTOPPED(status):
                break
            ptrace.cont(process.pid)
            time.sleep(0.001)
    process.returncode = 0  # not to be waited for again


@pytest.fixture(autouse=True)
def _no_orphans() -> None:
    """Whose parent has died comes to us; whoever of them has ended behind a test before would be told of here."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process that sleeps."""
    with subprocess.Popen(["sleep", "100"]) as process:
        wait_until(lambda: state_of(process.pid) == "S")
        yield process.pid
        end(process)


@pytest.fixture
def worker() -> Iterator[int]:
    """A process of one thread that works."""
    with subprocess.Popen(["sh", "-c", "echo; while :; do :; done"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        end(process)


def test_seizing_stops_nobody(sleeper: int) -> None:
    ptrace.seize(sleeper, ptrace.THREADS)
    assert tasks.tracer_of(sleeper) == os.getpid()
    assert state_of(sleeper) == "S"
    assert ptrace.next_report() is None


def test_a_thread_that_is_interrupted_shows_its_registers_and_runs_on(worker: int) -> None:
    ptrace.seize(worker, ptrace.THREADS)
    for _ in range(7):
        ptrace.interrupt(worker)
        assert next_report(worker) == ptrace.Report(worker, False, signal.SIGTRAP, abi.EVENT_STOP)
        registers = ptrace.Inspector().registers(worker)
        assert registers.bits == 64
        pc, sp = registers.dwarf[16], registers.dwarf[7]
        assert any(m.start <= pc < m.end for m in tasks.executables(worker, worker))
        stack = next(line for line in Path(f"/proc/{worker}/maps").read_text().splitlines() if "[stack]" in line)
        low, high = (int(address, 16) for address in stack.split()[0].split("-"))
        assert low <= sp < high
        ptrace.cont(worker)
        wait_until(lambda: state_of(worker) == "R")
    ptrace.interrupt(worker)
    next_report(worker)
    ptrace.detach(worker)
    assert tasks.tracer_of(worker) == 0


def test_a_stop_is_waited_for_and_still_told(worker: int) -> None:
    ptrace.seize(worker, ptrace.THREADS)
    ptrace.await_stop(worker, 1_000_000)
    assert ptrace.next_report() is None, "nobody has asked it to stop"
    for _ in range(7):
        ptrace.interrupt(worker)
        ptrace.await_stop(worker, 5_000_000_000)
        assert ptrace.next_report() == ptrace.Report(worker, False, signal.SIGTRAP, abi.EVENT_STOP)
        ptrace.cont(worker)
    os.kill(worker, signal.SIGKILL)
    next_report(worker)
    ptrace.await_stop(worker, 1_000_000)


def test_a_thread_that_stops_while_we_ask_is_not_told_as_gone(worker: int) -> None:
    ptrace.seize(worker, ptrace.THREADS)
    for _ in range(211):  # it stops before, between or behind the two questions that there are to ask
        ptrace.interrupt(worker)
        while (report := ptrace.next_report()) is None:
            pass
        assert report == ptrace.Report(worker, False, signal.SIGTRAP, abi.EVENT_STOP)
        ptrace.cont(worker)


def test_registers_are_those_that_gdb_shows(worker: int, need: Callable[[str, str], str]) -> None:
    gdb = need("gdb", "gdb")
    ptrace.seize(worker, ptrace.THREADS)
    os.kill(worker, signal.SIGSTOP)
    assert next_report(worker) == ptrace.Report(worker, False, signal.SIGSTOP, 0)
    ptrace.cont(worker, signal.SIGSTOP)
    assert next_report(worker) == ptrace.Report(worker, False, signal.SIGSTOP, abi.EVENT_STOP)
    mine = ptrace.Inspector().registers(worker)
    ptrace.detach(worker)
    wait_until(lambda: state_of(worker) == "T")
    names = ["rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", *(f"r{i}" for i in range(8, 16)), "rip"]
    printing = [part for name in names for part in ("-ex", f'printf "%lx\\n", ${name}')]
    shown = subprocess.run([gdb, "-batch", "-nx", "-p", str(worker), *printing], capture_output=True, text=True,
                           check=True, timeout=60).stdout
    assert [int(line, 16) for line in re.findall("^[0-9a-f]+$", shown, re.MULTILINE)] == list(mine.dwarf)


def test_signals_are_reported_before_they_are_given(sleeper: int) -> None:
    ptrace.seize(sleeper, ptrace.THREADS)
    os.kill(sleeper, signal.SIGTERM)
    assert next_report(sleeper) == ptrace.Report(sleeper, False, signal.SIGTERM, 0)
    ptrace.cont(sleeper, signal.SIGTERM)
    assert next_report(sleeper) == ptrace.Report(sleeper, False, signal.SIGTRAP, abi.EVENT_EXIT)
    ptrace.cont(sleeper)
    assert next_report(sleeper) == ptrace.Report(sleeper, True)


def test_a_thread_that_was_interrupted_stops_for_that_before_it_is_given_a_signal(sleeper: int) -> None:
    ptrace.seize(sleeper, ptrace.THREADS)
    ptrace.interrupt(sleeper)
    next_report(sleeper)
    os.kill(sleeper, signal.SIGWINCH)
    ptrace.interrupt(sleeper)
    ptrace.cont(sleeper)
    assert next_report(sleeper) == ptrace.Report(sleeper, False, signal.SIGTRAP, abi.EVENT_STOP)
    ptrace.cont(sleeper)
    assert next_report(sleeper) == ptrace.Report(sleeper, False, signal.SIGWINCH, 0)
    ptrace.cont(sleeper, signal.SIGWINCH)
    wait_until(lambda: state_of(sleeper) == "S")
    assert ptrace.next_report() is None


def test_a_thread_that_is_interrupted_before_its_signal_is_given_stops_for_that_afterwards(sleeper: int) -> None:
    ptrace.seize(sleeper, ptrace.THREADS)
    os.kill(sleeper, signal.SIGWINCH)
    assert next_report(sleeper) == ptrace.Report(sleeper, False, signal.SIGWINCH, 0)
    ptrace.interrupt(sleeper)
    ptrace.cont(sleeper, signal.SIGWINCH)
    assert next_report(sleeper) == ptrace.Report(sleeper, False, signal.SIGTRAP, abi.EVENT_STOP)
    ptrace.cont(sleeper)
    wait_until(lambda: state_of(sleeper) == "S")
    assert ptrace.next_report() is None


def test_a_stop_lasts_until_it_is_continued(sleeper: int) -> None:
    ptrace.seize(sleeper, ptrace.THREADS)
    os.kill(sleeper, signal.SIGSTOP)
    ptrace.cont(next_report(sleeper).tid, signal.SIGSTOP)
    assert next_report(sleeper) == ptrace.Report(sleeper, False, signal.SIGSTOP, abi.EVENT_STOP)
    ptrace.listen(sleeper)
    assert ptrace.next_report() is None
    os.kill(sleeper, signal.SIGCONT)
    # The end of the stop comes first or the signal itself, as the kernel likes.
    for _ in range(2):
        report = next_report(sleeper)
        assert (report.signal, report.event) in ((signal.SIGTRAP, abi.EVENT_STOP), (signal.SIGCONT, 0))
        ptrace.cont(sleeper, signal.SIGCONT if report.event == 0 else 0)
    wait_until(lambda: state_of(sleeper) == "S")


def test_a_result_that_is_replaced_begins_the_call_anew(tmp_path: Path) -> None:
    code = "import select; p = select.epoll(); print('ready', flush=True); print(p.poll(0.7), flush=True)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        wait_until(lambda: state_of(process.pid) == "S")
        ptrace.seize(process.pid, ptrace.THREADS)
        ptrace.interrupt(process.pid)
        next_report(process.pid)
        inspector = ptrace.Inspector()
        registers = inspector.registers(process.pid)
        assert registers.result == -abi.EINTR
        inspector.change(process.pid, 64, {}, -abi.ERESTARTNOHAND)
        ptrace.cont_to_call(process.pid)
        assert next_report(process.pid) == ptrace.Report(process.pid, False, abi.SYSCALL_SIGNAL, 0)
        assert inspector.registers(process.pid).call == registers.call
        ptrace.cont(process.pid)
        report = next_report(process.pid) if select.select([process.stdout], [], [], 5)[0] else None
        assert report == ptrace.Report(process.pid, False, signal.SIGTRAP, abi.EVENT_EXIT)
        ptrace.cont(process.pid)
        assert process.stdout.read() == "[]\n"


def test_a_killed_thread_is_no_error(sleeper: int) -> None:
    ptrace.seize(sleeper, ptrace.THREADS)
    os.kill(sleeper, signal.SIGKILL)
    wait_until(lambda: state_of(sleeper) in "tZ")
    ptrace.cont(sleeper)
    wait_until(lambda: state_of(sleeper) == "Z")
    ptrace.cont(sleeper)
    ptrace.listen(sleeper)
    with pytest.raises(ProcessLookupError):
        ptrace.Inspector().registers(sleeper)


def test_nobody_to_report_on_raises_ChildProcessError() -> None:
    code = "from collector.linux import ptrace\ntry: ptrace.next_report()\nexcept ChildProcessError: print('nobody')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "nobody\n"


def test_memory_is_read_up_to_what_cannot_be_read() -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    address = libc.mmap(0, 3 * page, libc.PROT_READ | libc.PROT_WRITE, libc.MAP_PRIVATE | libc.MAP_ANONYMOUS, -1)
    libc.munmap(address + page, page)
    libc.memory(address, page)[:] = bytes(i % 251 for i in range(page))
    target = libc.Exchange(2 * page)
    reader = libc.RemoteMemory()
    assert reader.read(os.getpid(), address + 5, 2 * page - 5, target.address) == page - 5
    assert target.view[:page - 5] == libc.memory(address, page)[5:]
    with pytest.raises(OSError, match="process_vm_readv"):
        reader.read(os.getpid(), address + page, 8, target.address)
    libc.munmap(address, page)
    libc.munmap(address + 2 * page, page)
